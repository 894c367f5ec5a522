"""OpenShift's proposal of mixed CPUs: its request, its profile on a node, and its numbers."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from cpupool.core.cpuset import CPUSet
from tests.cri_server import FakeCRI
from tests.machines import Machine
from tests.nodes import WrittenNode
from tests.scenarios.seeds.examples import node, placed, pod, text
from tests.scenarios.test_agent_process import living
from tests.scenarios.test_mixed_cpus import RESOURCE, Runtime, await_units, guaranteed
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.api import nri_pb2
    from tests.nri_runtime import FakeRuntime
    from tests.scenarios.test_agent_process import World

LIMIT = "mixed_cpus/openshift-workload-mixed-cpus.yaml"


def test_a_container_of_the_profile_has_both_kinds_of_cpus_and_their_variables(
    folder: Path,
) -> None:
    with node(folder, Machine(cores=9), LIMIT) as live:
        assert dict(live.await_pools())[RESOURCE] == 15
        live.run_pod(pod("mixed_cpus/request-1-limits.yaml"))
        assert placed(live) == {"request-1-limits/main": "2-5"}
        (main,) = (each for each in live.node.processes() if each.container)
        told = main.instance.environment
        assert told["OPENSHIFT_SHARED_CPUS"] == "2-3"
        assert told["OPENSHIFT_ISOLATED_CPUS"] == "4-5"


SHARED, OWN, PERIOD_US, QUOTA_US = re.findall(
    r"[:=] `([\d,]+)`", text("mixed_cpus/numbers.txt").replace("00,000", "00000")
)
NUMBERS = f"""
pools: {{shared_mixed: {{cpus: "{SHARED}"}}}}
mixedCPUs: {{pool: shared_mixed}}
"""


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    """Make a node whose kubelet gives the first container its CPUs of the example."""
    with living(folder, Machine(cores=9).write(folder), {}) as world:
        world.node.kubelet.static_cpus = CPUSet.parse(f"{OWN},7-8")
        world.mount.show(node=NUMBERS)
        (world.place.root / "cpu,cpuacct").mkdir()
        yield world


class Limiting(Runtime):
    """A container runtime that also sets the quotas that the agent asks for."""

    def _obey(self, update: nri_pb2.ContainerUpdate) -> None:
        super()._obey(update)
        if quota_us := update.linux.resources.cpu.quota.value:
            (path,) = (
                self._world.node.path_of(one)
                for one in self._world.node.processes()
                if one.instance.id == update.container_id
            )
            quota(self._world, path).write_text(f"{quota_us}\n")


def quota(world: World, cgroup: str) -> Path:
    return world.place.root / "cpu,cpuacct" / cgroup / "cpu.cfs_quota_us"


def test_the_cpus_and_the_quotas_of_the_numeric_example(world: World, runtime: FakeRuntime) -> None:
    with world.agent_here():
        nri = Limiting(world, runtime)
        await_units(world, 256)
        mixed = guaranteed(world, "mixed", 2, shared=True)
        container = world.path("mixed")
        limited = [quota(world, container), quota(world, container.rpartition("/")[0])]
        for file in limited:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.with_name("cpu.cfs_period_us").write_text(f"{PERIOD_US}\n")
            file.write_text(f"{QUOTA_US}\n")
        nri.update(mixed, OWN)
        world.await_cpus(mixed="3-6")

        def has() -> list[str]:
            # A file of a test is empty for a moment while it is written; the kernel's is not.
            return [file.read_text().strip() for file in limited]

        eventually(lambda: has() == ["400000", "400000"], lambda: str(has()))


def test_doctor_says_what_switches_nri_on_in_cri_o(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = WrittenNode(folder)
    with FakeCRI(written.root.cri_sockets[0], "cri-o"):
        cli.main(["doctor", "--json", "--host-root", str(folder), "--agent", "http://127.0.0.1:9"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    (nri,) = (each["remedy"] for each in checks if "NRI" in each["fact"] and each["remedy"])
    for line in text("mixed_cpus/crio-nri.toml").splitlines():
        assert line in nri
