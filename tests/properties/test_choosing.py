"""No order of pods, edits, offline CPUs and agent restarts gives a CPU of the policy two owners."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager, Eligible, SystemPods
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind, RuntimeContainer
from cpupool.manager import resolve, sightings
from cpupool.manager.choosing import Choices
from cpupool.manager.manager import Manager
from cpupool.policies.view import SYSTEM
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import MACHINES
from tests.searching import examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.grants import Grant
    from cpupool.core.workloads import Pod
    from cpupool.manager.facts import ContainerKey
    from cpupool.manager.resolve import PlacedContainer

MACHINE = MACHINES["arm_no_smt"]
STATIC = CPUManager("static", reserved=CPUSet.of(0))
LINES = (Pool.named("exclusive_a", "8-9"), Pool.named("default", "0-7"))
FILES = (
    NodePools.of(*LINES, cpu_manager=STATIC),
    NodePools.of(*LINES),
    NodePools.of(Pool.named("default", "0-5"), cpu_manager=STATIC),
    NodePools.of(Pool.named("exclusive_a", "3-9"), Pool.named("default", "0-2")),
    NodePools.of(
        *LINES,
        cpu_manager=replace(
            STATIC,
            eligible=Eligible.CONTAINER,
            system_pods=SystemPods(("system",), CPUSet.of(6, 7)),
        ),
    ),
)
KINDS = (ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR)


class Choosing(RuleBasedStateMachine):
    """A node whose pods come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = Manager()
        self.pools = FILES[0]
        self.offline = ""
        self.pods: dict[str, Pod] = {}
        self.ended: set[str] = set()
        self.had: dict[str, CPUSet] = {}
        self.parts: dict[tuple[str, str], CPUSet] = {}
        self.numbers = iter(range(10_000))
        self.start(())

    def start(
        self,
        found: tuple[FoundContainer, ...],
        recorded: Mapping[str, Mapping[str, CPUSet]] | None = None,
        living: Iterable[RuntimeContainer] = (),
    ) -> None:
        self.manager = Manager()
        self.manager.reconfigure(self.pools, MACHINE.without(self.offline).topology())
        self.manager.observe(pods=self.pods.values())
        self.manager.observe_containers(living)
        self.manager.adopt(found, State("static", entries=recorded or {}))
        there = {container.pod for container in found}
        self.ended &= there

    @rule(
        asked=st.lists(
            st.tuples(st.sampled_from(KINDS), st.integers(0, 4)), min_size=1, max_size=3
        ),
        guaranteed=st.booleans(),
        namespace=st.sampled_from(["default", "default", "system"]),
    )
    def a_pod_comes(
        self, asked: list[tuple[ContainerKind, int]], *, guaranteed: bool, namespace: str
    ) -> None:
        name = f"pod-{next(self.numbers)}"
        made = (
            replace(
                builders.container(f"{name}-{number}", kind, cpu=1000 * cpus or 500),
                id=ContainerID(f"{name}-{number}-id"),
            )
            for number, (kind, cpus) in enumerate(asked)
        )
        if not guaranteed:
            made = (replace(each, whole_cpus=0, equal_cpus=each.whole_cpus) for each in made)
        pod = replace(builders.pod(name, *made), created=f"{len(name)} {name}")
        self.pods[name] = replace(pod, namespace=namespace)
        self.manager.observe(pods=self.pods.values())

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_is_edited(self, data: st.DataObject) -> None:
        self.edit(data)
        self.manager.observe(pods=self.pods.values())

    def edit(self, data: st.DataObject) -> None:
        """Resize a container in place, or let the pod matter more to the node."""
        pod = data.draw(st.sampled_from(list(self.pods.values())))
        resized, cpus = data.draw(st.sampled_from(pod.containers)), data.draw(st.integers(0, 4))
        edited = replace(resized, whole_cpus=cpus)
        if resized.equal_cpus:
            edited = replace(resized, equal_cpus=cpus)
        containers = (edited if each is resized else each for each in pod.containers)
        self.pods[pod.name] = replace(
            pod, containers=tuple(containers), node_critical=data.draw(st.booleans())
        )

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), sandbox=st.booleans())
    def the_runtime_makes_a_container(self, data: st.DataObject, *, sandbox: bool) -> None:
        pod = data.draw(st.sampled_from(list(self.pods.values())))
        identifier = ContainerID(f"{pod.name}-{next(self.numbers)}")
        name = "" if sandbox else data.draw(st.sampled_from(pod.containers)).name
        self.manager.observe_containers(
            [RuntimeContainer(identifier, pod.cgroup_uid, "default", pod.name, name)]
        )

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pods)))
        self.ended.add(uid := self.pods.pop(name).cgroup_uid)
        sighted = self.manager.snapshot().facts.sighted.items()
        self.manager.forget_containers([key for key, found in sighted if found.pod == uid])
        self.manager.observe(pods=self.pods.values())

    @precondition(lambda self: self.ended)
    @rule()
    def the_cgroups_of_ended_pods_go(self) -> None:
        self.had = {uid: cpus for uid, cpus in self.had.items() if uid not in self.ended}
        self.manager.observe(idle=frozenset(self.ended))
        self.ended.clear()

    @rule(pools=st.sampled_from(FILES))
    def the_pool_file_is_edited(self, pools: NodePools) -> None:
        self.pools = pools
        self.manager.reconfigure(pools, MACHINE.without(self.offline).topology())

    @rule(offline=st.sampled_from(["", "1", "2-3", "7"]))
    def cpus_go_offline_and_return(self, offline: str) -> None:
        self.offline = offline
        self.manager.update_topology(MACHINE.without(offline).topology())

    @precondition(lambda self: not self.offline and self.pools == FILES[0])
    @rule()
    def the_agent_restarts(self) -> None:
        """Containers are found where they were, as many as they request; init containers ended."""
        placed = self.running()
        grants = self.manager.snapshot().resolution.grants
        before = {
            (uid, each.container.name): own
            for (uid, _), each in placed.items()
            if (own := grants.part(uid, POLICY_CPUS, each.container.name))
            if len(own) == each.container.whole_cpus
        }
        found = tuple(
            FoundContainer(uid, identifier, f"{uid}/{identifier}", str(each.assignment.cpus))
            for (uid, identifier), each in placed.items()
        )
        inside = CPUSet.union(self.owned().values()) <= CPUSet.parse("1-7")
        self.forget()
        self.start(found)
        grants = self.manager.snapshot().resolution.grants
        for (uid, name), cpus in before.items() if inside else ():
            assert grants.part(uid, POLICY_CPUS, name) == cpus

    @rule(data=st.data(), edited=st.booleans())
    def the_agent_restarts_with_its_record(self, data: st.DataObject, *, edited: bool) -> None:
        """Whatever was edited or went offline, also meanwhile: each grant is as it was."""
        before = self.manager.snapshot().resolution.view.chosen
        there = {uid: grant for uid, grant in before.items() if uid in self.pods_and_ended()}
        if edited and self.pods:
            self.edit(data)
        # Of pods that have ended only the cgroups are there.
        ended = (FoundContainer(uid, "x", f"{uid}/x", "0") for uid in self.ended)
        self.start(tuple(ended), {uid: grant.parts for uid, grant in before.items()})
        self.assert_kept(there)

    @rule(data=st.data(), edited=st.booleans())
    def the_agent_restarts_without_its_record(self, data: st.DataObject, *, edited: bool) -> None:
        """The containers that run have annotations with their CPUs, of when they were created.

        So a container that has left its CPUs, because all of them are offline, names them, too.
        """
        grants = self.manager.snapshot().resolution.grants
        living = [
            RuntimeContainer(
                identifier,
                uid,
                "default",
                each.pod.name,
                each.container.name,
                chosen=grants.part(uid, POLICY_CPUS, each.container.name),
            )
            for (uid, identifier), each in self.running().items()
        ]
        chosen = self.manager.snapshot().resolution.view.chosen
        names = {(each.pod, each.name) for each in living}
        there = {
            uid: replace(grant, parts={n: c for n, c in grant.parts.items() if (uid, n) in names})
            for uid, grant in chosen.items()
            if uid in {pod.cgroup_uid for pod in self.pods.values()}
        }
        if edited and self.pods:
            self.edit(data)
        self.forget()
        self.parts = {(uid, n): c for uid, grant in there.items() for n, c in grant.parts.items()}
        self.start((), living=living)
        self.assert_kept(there)

    @rule(data=st.data())
    def the_agent_restarts_with_a_forged_record(self, data: st.DataObject) -> None:
        cpus = st.sets(st.integers(0, 20), max_size=4).map(CPUSet)
        forged = {
            pod.cgroup_uid: {container.name: data.draw(cpus) for container in pod.containers}
            for pod in self.pods.values()
        }
        self.forget()
        self.start((), forged)
        self.parts = self.all_parts()

    def running(self) -> dict[ContainerKey, PlacedContainer]:
        """Return the containers of known pods, without init containers."""
        containers = self.manager.snapshot().resolution.containers
        uids = {pod.cgroup_uid for pod in self.pods.values()}
        return {
            key: placed
            for key, placed in containers.items()
            if placed.container.kind is not ContainerKind.INIT and key[0] in uids
        }

    def pods_and_ended(self) -> set[str]:
        return {pod.cgroup_uid for pod in self.pods.values()} | self.ended

    def forget(self) -> None:
        """Expect nothing of the grants until now."""
        self.had.clear()
        self.parts.clear()

    def assert_kept(self, before: Mapping[str, Grant]) -> None:
        now = self.manager.snapshot().resolution.view.chosen
        for uid, grant in before.items():
            if grant.parts:
                assert grant.parts.items() <= now[uid].parts.items()
                assert grant.sharing is now[uid].sharing

    def all_parts(self) -> dict[tuple[str, str], CPUSet]:
        chosen = self.manager.snapshot().resolution.view.chosen
        return {
            (uid, name): cpus for uid, grant in chosen.items() for name, cpus in grant.parts.items()
        }

    def owned(self) -> dict[str, CPUSet]:
        return {
            uid: has[POLICY_CPUS]
            for uid, has in builders.owned(self.manager).items()
            if POLICY_CPUS in has
        }

    @invariant()
    def what_is_kept_of_earlier_decisions_is_what_new_ones_would_be(self) -> None:
        facts, resolution = self.manager.snapshot()
        decided = Choices.of(resolution.view)
        anew = resolve.resolve(facts, sightings.present(facts), decided)
        assert resolution.containers == anew.containers

    @invariant()
    def another_look_changes_nothing(self) -> None:
        before = self.manager.snapshot().resolution
        self.manager.update_topology(MACHINE.without(self.offline).topology())
        after = self.manager.snapshot().resolution
        assert after.grants == before.grants
        assert after.view.refused.keys() == before.view.refused.keys()
        assert {key: one.assignment.cpus for key, one in after.containers.items()} == {
            key: one.assignment.cpus for key, one in before.containers.items()
        }

    @invariant()
    def a_pod_has_its_cpus_or_the_reason_why_not(self) -> None:
        resolution = self.manager.snapshot().resolution
        manager = self.pools.cpu_manager
        for pod in self.pods.values() if manager.chooses else ():
            if pod.is_one_of(manager.system_pods):
                continue
            lacking = [
                one.name
                for one in pod.containers
                if manager.eligible.cpus(one) and one.kind is not ContainerKind.INIT
                if not resolution.grants.part(pod.cgroup_uid, POLICY_CPUS, one.name)
            ]
            assert not lacking or pod.cgroup_uid in resolution.view.refused

    @invariant()
    def who_has_cpus_keeps_them_until_its_pod_ends(self) -> None:
        owned = self.owned()
        for uid, cpus in self.had.items():
            assert cpus <= owned.get(uid, CPUSet())
        self.had = owned

    @invariant()
    def a_container_gets_as_many_as_it_asks_for_once_or_shares(self) -> None:
        facts, resolution = self.manager.snapshot()
        parts = self.all_parts()
        for placed in resolution.containers.values():
            uid, name = placed.pod.cgroup_uid, placed.container.name
            own = resolution.grants.part(uid, POLICY_CPUS, name)
            assert own == self.parts.get((uid, name), own)
            eligible = facts.pools.cpu_manager.eligible.cpus(placed.container)
            assert (uid, name) in self.parts or len(own) in {0, eligible}
            online = own & facts.topology.online
            shared = facts.policy.shared(resolution.view, placed.pod)
            lost = own and not online
            assert placed.assignment.cpus == (
                online or (resolution.view.default if lost else shared).cpus
            )
        self.parts = parts

    @invariant()
    def nobody_else_runs_on_owned_cpus(self) -> None:
        _, resolution = self.manager.snapshot()
        owned = self.owned()
        assert sum(map(len, owned.values())) == len(CPUSet.union(owned.values()))
        assert resolution.view.default.cpus
        assert resolution.view.default.cpus.isdisjoint(CPUSet.union(owned.values()))
        system = resolution.view.extents.get(SYSTEM, CPUSet())
        assert system.isdisjoint(CPUSet.union(owned.values()) | resolution.view.default.cpus)
        assert all(
            placed.assignment.cpus.isdisjoint(system)
            for placed in resolution.containers.values()
            if not placed.pod.is_one_of(self.pools.cpu_manager.system_pods)
        )
        for (uid, _), placed in resolution.containers.items():
            others = CPUSet.union(cpus for other, cpus in owned.items() if other != uid)
            assert placed.assignment.cpus.isdisjoint(others)


Choosing.TestCase.settings = examples(100, stateful_step_count=20)
TestChoosing = Choosing.TestCase
