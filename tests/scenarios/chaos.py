"""A node to which anything happens, and where its containers belong by the rules.

The agent is a process; what it should do is computed here without its code.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cpupool.core.cpuset import CPUSet
from cpupool.host.cgroupfs import CgroupFS
from cpupool.kubelet.podresources import PodResources
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.node import EmbeddedNode
from tests.apiserver import FakeAPIServer
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from cpupool.local.pods import ContainerProcess
    from tests.machines import WrittenMachine

NODE: Final = "chaos"
PREFIX: Final = "nokia.k8s.io/"
MACHINE: Final = MACHINES["telco_2s_2n_16c32t"]
EVERYTHING: Final = CPUSet.parse("0-31")
"""The sibling of each CPU n below 16 is n + 16."""


@dataclass(frozen=True)
class Pools:
    """A pool file, as this test understands it: CPUs by pool, and the multiThreaded ones."""

    cpus: Mapping[str, str]
    multi_threaded: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        lines = ["pools:"]
        for name, cpus in self.cpus.items():
            policy = ", hyperThreadingPolicy: multiThreaded" if name in self.multi_threaded else ""
            lines.append(f'  {name}: {{cpus: "{cpus}"{policy}}}')
        return "\n".join([*lines, "nodeSelector: {role: worker}", ""])

    def of(self, pool: str) -> CPUSet:
        return CPUSet.parse(self.cpus.get(pool, ""))


GOOD: Final = (
    Pools(
        {
            "default": "0-1,16-17",
            "exclusive_a": "4-7",
            "exclusive_b": "8-11",
            "shared_a": "2-3,18-19",
        },
        frozenset({"exclusive_b"}),
    ),
    Pools(
        {
            "default": "0-1,16-17",
            "exclusive_a": "4-5",
            "exclusive_b": "8-11",
            "shared_a": "2-3,6-7,18-19,22-23",
        },
        frozenset({"exclusive_b"}),
    ),
    Pools(
        {"default": "0-1,10-11,16-17,26-27", "exclusive_a": "4-7", "exclusive_c": "8-9"},
        frozenset({"exclusive_c"}),
    ),
    Pools(
        {
            "default": "0,16",
            "exclusive_a": "4-7,12-13",
            "exclusive_b": "9-11",
            "shared_a": "2,18",
            "shared_b": "14-15,30-31",
        },
        frozenset({"exclusive_b"}),
    ),
)
BAD: Final = (
    "pools: {exclusive_a: {cpus: 4-7}, default: {cpus: 0-6}}",
    "pools: {exclusive_a: {cpus: 4-99}}",
    "pools: {exclusive_a: {cpu: 4}}",
    "pools: [",
    "",
)
KINDS: Final[tuple[Mapping[str, int], ...]] = (
    {"exclusive_a": 1},
    {"exclusive_a": 2},
    {"exclusive_b": 1},
    {"exclusive_c": 1},
    {"shared_a": 300},
    {"exclusive_a": 1, "shared_a": 50},
    {"exclusive_b": 1, "shared_b": 10},
    {},
)


def sibling(cpu: int) -> int:
    return (cpu + 16) % 32


def cores(cpus: CPUSet) -> CPUSet:
    return cpus | CPUSet(map(sibling, cpus))


@dataclass
class Held:
    """What the kubelet gave to the main container of one pod: device ids, and what they are."""

    pod: Pod
    ids: Mapping[str, frozenset[str]]
    owned: CPUSet
    shared: tuple[str, ...]


class ChaosNode:
    """One node, one agent process, one API server, and what this test knows of them."""

    def __init__(self, folder: Path, seed: int, opened: ExitStack) -> None:
        self.dice = random.Random(seed)
        self.folder = folder
        self.pools = GOOD[0]
        self.in_force = GOOD[0]
        self.edits = 0
        self.pods: dict[str, Held] = {}
        self.count = 0
        self.announced: list[str] = []
        self.history: list[str] = []
        self.disturbed: set[str] = set()
        self.machine: WrittenMachine = MACHINE.write(folder)
        self.never_seen = CPUSet()
        self.api = opened.enter_context(FakeAPIServer(NODE, {"role": "worker"}))
        self.place = opened.enter_context(EmulatedCgroups(folder, EVERYTHING, "a test"))
        self.node = opened.enter_context(
            EmbeddedNode(folder, self.place, sysfs=self.machine.sys, changed=self.publish)
        )
        (folder / "etc").mkdir()
        self.write(self.pools.text)
        self.agent: subprocess.Popen[str] | None = None
        self.reader: threading.Thread | None = None
        opened.callback(self.kill)
        self.start()

    # What the node is made of.

    @property
    def online(self) -> CPUSet:
        return EVERYTHING - self.machine.offline

    @cached_property
    def tree(self) -> CgroupFS:
        return CgroupFS(self.node.root.cgroup, self.node.cgroup_root)

    def publish(self) -> None:
        self.api.set_pods(self.node.bodies()["items"])

    def write(self, text: str) -> None:
        """Swap the ConfigMap's folder as the kubelet does: new data, then one rename."""
        etc = self.folder / "etc"
        self.edits += 1
        fresh = etc / f"..{self.edits}"
        fresh.mkdir()
        (fresh / "poolconfig-worker.yaml").write_text(text)
        link = etc / "..data_tmp"
        link.symlink_to(fresh.name)
        link.replace(etc / "..data")
        visible = etc / "poolconfig-worker.yaml"
        if not visible.is_symlink():
            visible.symlink_to("..data/poolconfig-worker.yaml")

    def start(self) -> None:
        self.never_seen = self.machine.offline
        self.agent = subprocess.Popen(
            [
                *(sys.executable, "-W", "error", "-m", "cpupool", "agent"),
                *("--host-root", self.folder, "--config", self.folder / "etc"),
                *("--node-name", NODE, "--api-server", self.api.url),
                *("--metrics-port", "0", "--move-pinned", "always"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self.listen, args=(self.agent,))
        self.reader.start()

    def listen(self, agent: subprocess.Popen[str]) -> None:
        assert agent.stderr
        self.announced.extend(agent.stderr)

    def kill(self) -> None:
        if self.agent and self.reader and self.agent.stderr:
            self.agent.send_signal(signal.SIGKILL)
            self.agent.wait(DEADLINE_S)
            self.reader.join(DEADLINE_S)
            self.agent.stderr.close()
        self.agent = None

    # What each container should have, by the rules and not by the agent's code.

    def expected(self) -> dict[str, CPUSet]:
        """Give cgroup → CPUs for everything that runs."""
        return {
            self.node.path_of(process): self.belongs(process) for process in self.node.processes()
        }

    def belongs(self, process: ContainerProcess) -> CPUSet:
        taken = self.reach(CPUSet.union(held.owned for held in self.pods.values()))
        free = self.online - taken
        default = self.in_force.of("default") & free
        held = self.pods.get(process.pod.uid)
        if held is None or process.container != "main":
            return default
        shared = CPUSet.union(self.in_force.of(pool) & free for pool in held.shared)
        return held.owned & self.online | shared or default

    def reach(self, cpus: CPUSet) -> CPUSet:
        """Give whole cores, as far as an agent can know that started while CPUs were offline."""
        return cpus | cores(cpus - self.never_seen)

    def astray(self) -> dict[str, str]:
        wrong = {}
        for path, cpus in self.expected().items():
            found = self.read(path)
            if found != str(cpus):
                wrong[path] = f"runs on {found}, belongs on {cpus}"
        return wrong

    def read(self, path: str) -> str:
        return (self.place.root / "cpuset" / path / "cpuset.cpus").read_text().strip()

    def listed(self) -> dict[str, tuple[object, object]]:
        """Give pool → what the kubelet sees healthy, and what it should see."""
        held: defaultdict[str, set[str]] = defaultdict(set)
        for holder in self.pods.values():
            for pool, ids in holder.ids.items():
                held[pool] |= ids
        found: dict[str, tuple[object, object]] = {}
        # Of pools that are gone, too: until the kubelet knows, it admits pods to them in vain.
        for pool in {*held, *(pool for pools in GOOD for pool in pools.cpus)} - {"default"}:
            seen = self.node.kubelet.listing(f"{PREFIX}{pool}").healthy
            own = self.in_force.of(pool)
            if pool.startswith("shared"):
                there = held[pool] <= seen and len(seen)
                runs = not own or own & self.online
                found[pool] = there, max(1000 * len(own), len(held[pool])) if runs else 0
                continue
            owned = {name: CPUSet(map(int, ids)) for name, ids in held.items() if name[0] == "e"}
            others = self.reach(CPUSet.union(cpus for name, cpus in owned.items() if name != pool))
            mine = own | owned.get(pool, CPUSet())
            found[pool] = CPUSet(map(int, seen)), (mine & self.online) - others
        return found

    def sees_machine(self) -> bool:
        """Return whether the agent knows which CPUs are online: no event of a kernel tells it."""
        status = self.node.root.status
        return status.exists() and json.loads(status.read_text())["offline"] == str(
            self.machine.offline
        )

    def shown(self) -> dict[str, tuple[object, object]]:
        """Give pool → the online CPUs that a starting container reads of it, and should read."""
        taken = self.reach(CPUSet.union(held.owned for held in self.pods.values()))
        found: dict[str, tuple[object, object]] = {
            pool: (None, "a file") for pool in self.in_force.cpus if pool.startswith("shared")
        }
        for file in self.node.root.pool_folders.glob("*/cpus"):
            pool = file.parent.name
            read = CPUSet.parse(file.read_text()) & self.online
            found[pool] = read, self.in_force.of(pool) & self.online - taken
        return found

    def ids(self, pod: Pod) -> dict[str, frozenset[str]]:
        """Ask the kubelet which devices of each pool a pod holds."""
        found = PodResources(self.node.root.podresources_socket).by_pod_name()
        return {
            resource.removeprefix(PREFIX): grant.ids
            for resource, grant in found[pod.namespace, pod.name]["main"].items()
        }
