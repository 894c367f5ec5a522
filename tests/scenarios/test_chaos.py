"""Whatever happens to a node, in any order: the agent is a process, the rest speaks its protocols.

After each step every container must come to the CPUs that follow from the kubelet's books and the
pool file, as computed here without the agent's code, and every shared pool's files must say the
same. What was right and is concerned by nothing is not written; no CPU has two owners, in the books
or in what the agent writes.

CPUPOOL_CHAOS_SEEDS=50 runs the seeds 0 to 49.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PodRefused
from cpupool.host.cgroupfs import CgroupFS
from cpupool.kubelet.podresources import PodResources
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.node import EmbeddedNode
from tests.apiserver import FakeAPIServer
from tests.cgroups import overwrite
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cpupool.core.workloads import Pod
    from cpupool.local.pods import ContainerProcess
    from tests.machines import WrittenMachine

STEPS: Final = 200
SEEDS: Final = range(int(os.environ.get("CPUPOOL_CHAOS_SEEDS", "2")))
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


class Chaos:
    """One node, one agent process, one API server, and what this test knows of them."""

    def __init__(self, folder: Path, seed: int, opened: ExitStack) -> None:
        self.dice = random.Random(seed)
        self.folder = folder
        self.pools = GOOD[0]
        self.in_force = GOOD[0]
        self.edits = 0
        self.pods: dict[str, Held] = {}
        self.count = 0
        self.told: list[str] = []
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
        self.told.extend(agent.stderr)

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

    # Steps.

    def create(self) -> None:
        requests = self.dice.choice(KINDS)
        self.count += 1
        name = f"p{self.count}"
        amounts = {f"{PREFIX}{pool}": str(amount) for pool, amount in requests.items()}
        containers: list[dict[str, Any]] = [{"name": "main", "resources": {"limits": amounts}}]
        if self.dice.random() < 0.3:
            containers.append({"name": "side"})
        before = self.in_force
        try:
            pod = self.node.run_pod(
                {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}
            )
        except PodRefused as error:
            self.note(f"refused {error.reason}")
            return
        ids = self.ids(pod)
        owned = CPUSet()
        for pool in filter(lambda pool: pool.startswith("exclusive"), ids):
            cpus = CPUSet(map(int, ids[pool]))
            owned |= cores(cpus) & self.online if pool in before.multi_threaded else cpus
        shared = tuple(pool for pool in requests if pool.startswith("shared"))
        self.pods[pod.uid] = Held(pod, ids, owned, shared)
        self.note(f"{name} {dict(requests)} got {owned}")

    def end(self) -> None:
        if uid := self.some_pod():
            if self.dice.random() < 0.5:
                self.node.delete_pod(self.pods[uid].pod.uid)
            else:
                self.node.finish_pod(self.pods[uid].pod.uid)
            held = self.pods.pop(uid)
            self.note(held.pod.name)

    def restart_container(self) -> None:
        if uid := self.some_pod():
            self.node.restart_container(self.pods[uid].pod.uid, "main")

    def restart_kubelet(self) -> None:
        self.node.kubelet.restart()
        self.settle()
        lost = self.machine.offline
        for uid, refused in self.node.admit_again().items():
            held = self.pods.pop(uid)
            # A pod whose CPU is offline is the only one that the kubelet may refuse.
            assert not held.owned.isdisjoint(lost), refused

    def restart_agent(self) -> None:
        self.kill()
        meanwhile = self.dice.choice(
            [self.end, self.disturb, self.offline, self.online_again, None]
        )
        if meanwhile:
            self.note(f"meanwhile {meanwhile.__name__}")
            meanwhile()
        self.start()

    def edit(self) -> None:
        self.pools = self.in_force = self.dice.choice(GOOD)
        self.write(self.pools.text)
        self.note(self.pools.cpus)

    def edit_badly(self) -> None:
        bad = self.dice.choice(BAD)
        self.write(bad)
        self.note(bad)

    def offline(self) -> None:
        self.machine.switch_off(CPUSet.of(self.dice.choice([*range(1, 16), *range(17, 32)])))
        self.note(f"{self.machine.offline} are off")

    def online_again(self) -> None:
        if self.machine.offline:
            self.machine.switch_on(CPUSet.of(self.dice.choice(list(self.machine.offline))))
            self.never_seen &= self.machine.offline
            self.note(f"{self.machine.offline} are off")

    def disturb(self) -> None:
        for path in self.dice.sample(sorted(self.expected()), k=min(2, len(self.expected()))):
            cpus = CPUSet(self.dice.sample(range(32), k=self.dice.randint(1, 32)))
            overwrite(self.place.root / "cpuset" / path / "cpuset.cpus", cpus)
            self.disturbed.add(path)
            self.note(f"{path[-8:]} to {cpus}")

    def lose_api(self) -> None:
        fault = self.dice.choice(
            [self.api.down, self.api.slow, self.api.gone, self.api.drop_watches]
        )
        self.note(fault.__name__)
        fault()
        self.dice.choice([self.end, self.create, self.disturb])()
        self.api.up()

    def some_pod(self) -> str | None:
        return self.dice.choice(sorted(self.pods)) if self.pods else None

    # The run.

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (30, self.create),
            (16, self.end),
            (8, self.restart_container),
            (6, self.restart_kubelet),
            (5, self.restart_agent),
            (8, self.edit),
            (4, self.edit_badly),
            (7, self.offline),
            (7, self.online_again),
            (8, self.disturb),
            (6, self.lose_api),
        ]
        (action,) = self.dice.choices([one for _, one in steps], [weight for weight, _ in steps])
        self.history.append(action.__name__)
        before, owners = self.stamps(), self.owners()
        said = len(self.told)
        self.disturbed.clear()
        action()
        self.settle()
        self.check_untouched(before)
        self.check_writes(self.told[said:], owners)

    def settle(self) -> None:
        """Wait until everything is where it belongs, and the kubelet sees what it should."""
        if self.agent is None:
            return
        eventually(
            lambda: (
                not self.astray()
                and self.sees_machine()
                and all(seen == should for seen, should in self.listed().values())
                and all(read == should for read, should in self.shown().values())
            ),
            lambda: (
                "\n".join(
                    [*self.history, str(self.astray()), str(self.listed()), str(self.shown())]
                )
                + "\n"
                + "".join(self.told[-40:])
            ),
        )

    def stamps(self) -> dict[str, tuple[CPUSet, int]]:
        """Give cgroup → where it belongs, and when its set was last written."""
        return {
            path: (cpus, (self.place.root / "cpuset" / path / "cpuset.cpus").stat().st_mtime_ns)
            for path, cpus in self.expected().items()
        }

    def check_untouched(self, before: Mapping[str, tuple[CPUSet, int]]) -> None:
        """Nothing was written that belongs where it was and that nobody disturbed."""
        for path, (cpus, written_ns) in self.stamps().items():
            if path not in self.disturbed and path in before and before[path][0] == cpus:
                assert before[path][1] == written_ns, self.story(path)

    def owners(self) -> dict[str, CPUSet]:
        return {held.pod.cgroup_uid: held.owned for held in self.pods.values()}

    def check_writes(self, said: list[str], before: Mapping[str, CPUSet]) -> None:
        """No CPU has two owners, and nobody was put on the CPU of a pod that owns it throughout."""
        after = self.owners()
        seen = CPUSet()
        for owned in after.values():
            assert seen.isdisjoint(cores(owned)), self.story(after)
            seen |= cores(owned)
        for line in said:
            written = re.search(r"cpuset repaired.* cgroup=(\S+).* cpus=(\S+)", line)
            if written:
                for uid, owned in after.items():
                    if uid in before and uid not in written[1]:
                        assert CPUSet.parse(written[2]).isdisjoint(owned), self.story(line)

    def story(self, end: object) -> str:
        return "\n".join([*self.history, str(end), *map(str.rstrip, self.told[-40:])])

    def note(self, what: object) -> None:
        self.history[-1] += f" {what}"


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("seed", SEEDS)
def test_every_container_comes_back_to_its_cpus(folder: Path, opened: ExitStack, seed: int) -> None:
    chaos = Chaos(folder, seed, opened)
    chaos.settle()
    for _ in range(STEPS):
        chaos.step()
