from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.host.sysfs import RecordedTree, Sysfs
from cpupool.policies.layout import Layout, Level, Place
from tests.machines import MACHINES, Machine

TELCO = MACHINES["telco_2s_2n_16c32t"]


def test_a_cpu_that_went_offline_is_in_no_group() -> None:
    layout = Layout.of_topology(TELCO.having_lost(CPUSet.parse("3,9,18,25")))

    assert layout == Layout.of_topology(TELCO.without("3,9,18,25").topology())
    assert layout.places[19] == Place(core=19, socket=0, node=0, uncore=0)
    assert layout.groups[Level.CORE][2] == CPUSet.of(2)
    # Cores with one thread, where the others have two, are not whole.
    assert layout.short == CPUSet.of(2, 19)
    assert layout.whole_cores(CPUSet.parse("0-3,16-19")) == CPUSet.parse("0-1,16-17")
    assert layout.usual(Level.CORE) == 2


@pytest.mark.parametrize(
    ("machine", "short"),
    [
        pytest.param(Machine(cores=8, threads=2, offline="9"), "1", id="a thread is off"),
        pytest.param(Machine(cores=8, threads=2, offline="8-15"), "", id="no SMT"),
        pytest.param(Machine(cores=8, threads=2, offline="8-14"), "0-6", id="most are short"),
        pytest.param(Machine(cores=8, threads=2, offline="12-15"), "4-7", id="the last are off"),
        pytest.param(Machine(threads=8, cores=2, adjacent=True, offline="15"), "8-14", id="SMT 8"),
        pytest.param(Machine(cores=8, threads=2, offline="0,8"), "", id="a core is off"),
        pytest.param(MACHINES["hybrid"], "", id="efficiency cores have one thread"),
        pytest.param(replace(MACHINES["hybrid"], offline="1"), "0", id="beside efficiency cores"),
    ],
)
def test_a_core_is_short_if_others_of_its_kind_have_more_threads(
    machine: Machine, short: str
) -> None:
    layout = Layout.of_topology(machine.topology())
    assert layout.short == CPUSet.parse_or_empty(short)
    assert layout.short.isdisjoint(layout.whole_cores(layout.cpus))


@pytest.mark.parametrize(("offline", "short"), [("", ""), ("14-15", ""), ("3", "2,8-15")])
def test_cores_of_a_hybrid_machine_without_names_of_kinds(offline: str, short: str) -> None:
    machine = replace(MACHINES["hybrid"], offline=offline)
    files = machine.files(CPUSet.parse(offline))
    files = {path: text for path, text in files.items() if not path.startswith("devices/cpu_")}

    layout = Layout.of_topology(Sysfs(RecordedTree("unnamed", files)).topology())

    assert layout.short == CPUSet.parse_or_empty(short)


def test_a_cpu_of_which_nothing_is_known_is_a_core_by_itself() -> None:
    layout = Layout.of_topology(TELCO.without("5").topology(), CPUSet.parse("5,21,99"))

    assert layout.places[5] == Place(core=5, socket=-1, node=-1, uncore=-1)
    assert layout.places[21] == Place(core=21, socket=0, node=0, uncore=0)
    assert layout.largest_core == 1
    assert [layout.usual(level) for level in (Level.CORE, Level.SOCKET)] == [1, 1]
    assert Layout.of({}).largest_core == 1
