"""Whatever happens to a node, in any order: the agent is a process, the rest speaks its protocols.

After each step every container must come to the CPUs that follow from the kubelet's books and the
pool file, as computed here without the agent's code, and every shared pool's files must say the
same. What was right and is concerned by nothing is not written; no CPU has two owners, in the books
or in what the agent writes.

CPUPOOL_CHAOS_SEEDS=50 runs the seeds 0 to 49.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PodRefused
from tests.cgroups import overwrite
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


from tests.pods import labelled, resized
from tests.scenarios.chaos import BAD, GOOD, KINDS, PREFIX, ChaosNode, Held, cores

STEPS: Final = 200
SEEDS: Final = range(int(os.environ.get("CPUPOOL_CHAOS_SEEDS", "2")))


class Chaos(ChaosNode):
    """What happens to a node, step by step, and what is checked after each step."""

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
            [self.end, self.disturb, self.offline, self.online_again, self.edit_pod, None]
        )
        if meanwhile:
            self.note(f"meanwhile {meanwhile.__name__}")
            meanwhile()
        self.start()

    def edit_pod(self) -> None:
        """Edit what an author may edit of a running pod: no container has other CPUs for it."""
        if uid := self.some_pod():
            cpu, label = self.dice.choice(["0", "500m", "1", "3"]), self.dice.choice(["LSR", "BE"])
            self.note(f"{self.pods[uid].pod.name} to cpu {cpu}, {label}")
            self.node.edit_pod(
                self.pods[uid].pod.uid,
                lambda body: labelled(resized(body, cpu), **{"koordinator.sh/qosClass": label}),
            )

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
            (8, self.edit_pod),
            (4, self.edit_badly),
            (7, self.offline),
            (7, self.online_again),
            (8, self.disturb),
            (6, self.lose_api),
        ]
        (action,) = self.dice.choices([one for _, one in steps], [weight for weight, _ in steps])
        self.history.append(action.__name__)
        before, owners = self.stamps(), self.owners()
        said = len(self.announced)
        self.disturbed.clear()
        action()
        self.settle()
        self.check_untouched(before)
        self.check_writes(self.announced[said:], owners)

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
                + "".join(self.announced[-40:])
            ),
        )

    def stamps(self) -> dict[str, tuple[CPUSet, int]]:
        """Give cgroup → where it belongs, and when its set was last written."""
        return {
            path: (cpus, (self.place.root / "cpuset" / path / "cpuset.cpus").stat().st_mtime_ns)
            for path, cpus in self.expected().items()
        }

    def check_untouched(self, before: Mapping[str, tuple[CPUSet, int]]) -> None:
        """Nothing was written that belongs where it was and was not disturbed."""
        for path, (cpus, written_ns) in self.stamps().items():
            if path not in self.disturbed and path in before and before[path][0] == cpus:
                assert before[path][1] == written_ns, self.story(path)

    def owners(self) -> dict[str, CPUSet]:
        return {held.pod.cgroup_uid: held.owned for held in self.pods.values()}

    def check_writes(self, said: list[str], before: Mapping[str, CPUSet]) -> None:
        """No CPU has two owners, and no other container got a CPU that a pod owns throughout."""
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
        return "\n".join([*self.history, str(end), *map(str.rstrip, self.announced[-40:])])

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
