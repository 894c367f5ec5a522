"""The agent beside systemd, which makes the cgroups; `test_systemd.py` runs this in a guest.

The layout is that of the kubelet's systemd driver with containerd: nested slices, and a transient
scope for each container, delegated as runc asks for it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.local.node import SANDBOX
from tests.scenarios.test_embedded_node import World, living, manifest
from tests.vm.inside import reads, runs_on, start
from tests.vm.test_systemd import TOPOLOGY
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

BASE = Path("/sys/fs/cgroup")
POOLS = """
pools:
  exclusive_a: {cpus: "2,4", hyperThreadingPolicy: multiThreaded}
  default: {cpus: "0-1"}
"""


class SystemdCgroups:
    """Satisfies `cpupool.local.cgroups.Cgroups`: systemd makes a scope for each container.

    Its names of pods and containers are those that the cgroupfs driver has in the same place.
    """

    root = BASE
    cgroup_root = ""
    described = "scopes of systemd"

    def __init__(self) -> None:
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def make(self, path: str) -> None:
        if re.search(r"/pod[^/]+/.", path):
            *_, scope = _units(path)
            # It ends with the process in it, which is there until the container is removed.
            options = ["--scope", "--collect", "--quiet", f"--unit={scope}", "-pDelegate=yes"]
            slice_ = f"--slice={_units(path)[-2]}"
            self._holders[path] = subprocess.Popen(
                ["systemd-run", *options, slice_, "sleep", "infinity"],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            procs = self.directory(path) / "cgroup.procs"
            eventually(lambda: procs.exists() and procs.read_text(), f"{scope} has started")

    def enter(self, path: str, pid: int) -> None:
        (self.directory(path) / "cgroup.procs").write_text(str(pid))

    def remove(self, path: str) -> None:
        # One that is not there, or no longer, is as wanted.
        subprocess.run(["systemctl", "stop", _units(path)[-1]], check=False, capture_output=True)
        for held in [held for held in self._holders if held.startswith(path)]:
            self._holders.pop(held).wait(DEADLINE_S)

    def directory(self, path: str) -> Path:
        return BASE.joinpath(*_units(path))


def _units(path: str) -> list[str]:
    """Give the units on the way to what is `kubepods/<QoS>/pod<UID>/<id>` with cgroupfs."""
    parts = [part.replace("-", "_") for part in path.split("/")]
    slices = ["-".join(parts[:count]) + ".slice" for count in range(1, min(len(parts), 3) + 1)]
    return [*slices, *(f"cri-containerd-{container}.scope" for container in parts[3:])]


def systemctl(*arguments: str) -> None:
    subprocess.run(["systemctl", *arguments], check=True, capture_output=True)


@pytest.fixture
def cgroups() -> SystemdCgroups:
    return SystemdCgroups()


@pytest.fixture
def world(folder: Path, cgroups: SystemdCgroups) -> Iterator[World]:
    with living(folder, cgroups, POOLS, Path("/sys")) as made:
        body = manifest("web", {"main": {"exclusive_a": 1}, "plain": {}})
        for container in body["spec"]["containers"]:
            container["resources"]["requests"] = {"cpu": "100m"}
        start(made, body)
        yield made


def right(world: World) -> None:
    runs_on(world, main="2-3", plain="0-1", **{SANDBOX: "0-1"})


def scope(world: World, cgroups: SystemdCgroups) -> Path:
    (main,) = (one for one in world.node.processes() if one.container == "main")
    return cgroups.directory(main.instance.cgroup)


def test_the_topology_read_is_the_one_asked_of_qemu() -> None:
    reads(TOPOLOGY)


def test_containers_in_scopes_get_the_cpus_of_their_pools(
    world: World, cgroups: SystemdCgroups
) -> None:
    right(world)
    path = str(scope(world, cgroups).relative_to(BASE))
    pod = r"kubepods-burstable-pod[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}"
    below = rf"{pod}\.slice/cri-containerd-[0-9a-f]{{64}}\.scope"
    assert re.fullmatch(rf"kubepods\.slice/kubepods-burstable\.slice/{below}", path)


def test_a_reload_of_systemd_moves_no_container(world: World, cgroups: SystemdCgroups) -> None:
    right(world)
    systemctl("daemon-reload")
    # It writes its settings of every unit anew when one of them changes.
    systemctl("set-property", "--runtime", scope(world, cgroups).name, "CPUWeight=200")
    right(world)
    assert (scope(world, cgroups) / "cpuset.cpus").read_text() == "2-3\n"


def test_a_cpuset_that_systemd_writes_is_put_right(world: World, cgroups: SystemdCgroups) -> None:
    right(world)
    systemctl("set-property", "--runtime", scope(world, cgroups).name, "AllowedCPUs=0-15")
    right(world)
    systemctl("daemon-reload")
    right(world)
