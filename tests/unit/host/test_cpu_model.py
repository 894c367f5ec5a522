"""The kind of CPUs, as the kernel describes it on machines of several vendors."""

from __future__ import annotations

import pytest

from cpupool.core.node_topology import CPUModel
from cpupool.host import cpu_model
from cpupool.host.sysfs import RecordedTree

XEON = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) CPU @ 2.60GHz

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: another core: of a hybrid machine
"""
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\n"


@pytest.mark.parametrize(
    ("cpuinfo", "sysfs", "model"),
    [
        pytest.param(
            XEON,
            {
                "devices/system/cpu/intel_pstate/no_turbo": "0",
                "fs/resctrl/info/L3/cbm_mask": "7ff",
            },
            CPUModel("Intel(R) Xeon(R) CPU @ 2.60GHz", "GenuineIntel", turbo=True, l3_mask="7ff"),
            id="intel_pstate",
        ),
        pytest.param(
            XEON,
            {
                "devices/system/cpu/intel_pstate/no_turbo": "1",
                "fs/resctrl/info/L3CODE/cbm_mask": "f",
            },
            CPUModel("Intel(R) Xeon(R) CPU @ 2.60GHz", "GenuineIntel", turbo=False, l3_mask="f"),
            id="turbo is off, the cache is split for code and data",
        ),
        pytest.param(
            "vendor_id: AuthenticAMD\nmodel name: EPYC\n",
            {"devices/system/cpu/cpufreq/boost": "1"},
            CPUModel("EPYC", "AuthenticAMD", turbo=True),
            id="acpi-cpufreq",
        ),
        pytest.param(ARM, {}, CPUModel(), id="ARM names neither model nor vendor"),
        pytest.param("", {}, CPUModel(), id="nothing can be read"),
    ],
)
def test_the_kernel_describes_the_first_cpu(
    cpuinfo: str, sysfs: dict[str, str], model: CPUModel
) -> None:
    proc = RecordedTree("/proc", {"cpuinfo": cpuinfo} if cpuinfo else {})

    assert cpu_model.read(proc, RecordedTree("/sys", sysfs)) == model
