"""No order of pods, settings, offline CPUs and agent restarts breaks a bubble."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cpupool.core.cpu_manager import CPUManager, Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import Grants
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind, QoSClass
from cpupool.manager import resolve, sightings
from cpupool.manager.choosing import Choices
from cpupool.manager.manager import Manager
from cpupool.wire import cpu_manager_state
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import MACHINES
from tests.searching import examples

if TYPE_CHECKING:
    from cpupool.core.devices import NodesOfDevices
    from cpupool.core.grants import Grant
    from cpupool.core.workloads import Container, Pod

MACHINE = MACHINES["telco_2s_2n_16c32t"]
BUBBLES = CPUManager("static", CPUSet.of(0), topology_scope=Scope.POD, pod_level=True)
SETTINGS = (
    BUBBLES,
    replace(BUBBLES, policy="dynamic"),
    replace(BUBBLES, topology_policy=TopologyPolicy.RESTRICTED),
    replace(BUBBLES, topology_scope=Scope.CONTAINER),
    replace(BUBBLES, pod_level=False),
)
DEFAULT = Pool.named("default", "0-11")
KINDS = st.sampled_from((ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR))


class Bubbles(RuleBasedStateMachine):
    """A node whose pods have resources of their own, beside others that have not."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = BUBBLES
        self.offline = ""
        self.pods: dict[str, Pod] = {}
        self.numbers = iter(range(10_000))
        self.had: dict[str, Grant] = {}
        self.start(State("static"))

    def start(self, recorded: State) -> None:
        self.manager = Manager()
        self.configure()
        self.observe()
        self.manager.adopt((), recorded)

    def configure(self) -> None:
        pools = NodePools.of(DEFAULT, cpu_manager=self.settings)
        self.manager.reconfigure(pools, MACHINE.without(self.offline).topology())

    def observe(self) -> None:
        unbound: NodesOfDevices = {pod.cgroup_uid: {} for pod in self.pods.values()}
        self.manager.observe(pods=self.pods.values(), device_nodes=unbound)

    def add(self, containers: list[Container], cpus: int) -> None:
        name = f"pod-{next(self.numbers):05}"
        # As in the API, the kinds of init containers come first.
        ordered = sorted(containers, key=lambda each: each.kind is ContainerKind.APP)
        pod = replace(builders.pod(name, *ordered), created=name, qos=QoSClass.GUARANTEED)
        leveled = replace(pod, level_milli=1000 * cpus, level_cpus=cpus) if cpus else pod
        self.pods[name] = leveled
        self.observe()

    @rule(
        asked=st.lists(st.tuples(KINDS, st.integers(0, 3)), min_size=1, max_size=5),
        cpus=st.integers(1, 6),
    )
    def a_pod_with_resources_of_its_own_comes(
        self, asked: list[tuple[ContainerKind, int]], cpus: int
    ) -> None:
        made = (
            replace(builders.container(f"c{number}", kind), level_cpus=count)
            for number, (kind, count) in enumerate(asked)
        )
        self.add(list(made), cpus)

    @rule(cpus=st.integers(0, 3))
    def another_pod_comes(self, cpus: int) -> None:
        self.add([builders.container(cpu=1000 * cpus or 500)], 0)

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), cpus=st.integers(0, 6))
    def a_pod_is_resized(self, data: st.DataObject, cpus: int) -> None:
        pod = data.draw(st.sampled_from(sorted(self.pods.values(), key=lambda each: each.name)))
        if not pod.level_milli:
            return
        chosen = data.draw(st.sampled_from(pod.containers))
        count = data.draw(st.integers(0, 3))
        containers = tuple(
            replace(each, level_cpus=count) if each is chosen else each for each in pod.containers
        )
        self.pods[pod.name] = replace(pod, containers=containers, level_cpus=cpus)
        self.observe()

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_container_starts_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pods)))
        new = ContainerID(f"{name}-{next(self.numbers)}")
        first, *others = self.pods[name].containers
        self.pods[name] = replace(self.pods[name], containers=(replace(first, id=new), *others))
        self.observe()

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_debugger_starts(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pods)))
        debugger = builders.container(f"debug-{next(self.numbers)}", ContainerKind.EPHEMERAL)
        pod = self.pods[name]
        self.pods[name] = replace(pod, containers=(*pod.containers, debugger))
        self.observe()

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        uid = self.pods.pop(data.draw(st.sampled_from(sorted(self.pods)))).cgroup_uid
        self.had.pop(uid, None)
        self.observe()
        self.manager.observe(idle=frozenset({uid}))

    @rule(settings=st.sampled_from(SETTINGS))
    def the_pool_file_is_edited(self, settings: CPUManager) -> None:
        self.settings = settings
        self.configure()

    @rule(offline=st.sampled_from(["", "1", "2-3", "4-9"]))
    def cpus_go_offline_and_return(self, offline: str) -> None:
        self.offline = offline
        self.manager.update_topology(MACHINE.without(offline).topology())

    @rule()
    def the_agent_restarts(self) -> None:
        before = self.chosen()
        record = State(
            self.settings.policy,
            entries={uid: grant.parts for uid, grant in before.items()},
            pods={uid: grant.cpus for uid, grant in before.items() if grant.bubble},
        )
        self.start(cpu_manager_state.parse(cpu_manager_state.encode(record)))
        for uid, grant in before.items():
            assert self.chosen()[uid] == grant

    def chosen(self) -> dict[str, Grant]:
        return dict(self.manager.snapshot().resolution.view.chosen)

    @invariant()
    def what_is_kept_of_earlier_decisions_is_what_new_ones_would_be(self) -> None:
        facts, resolution = self.manager.snapshot()
        decided = Choices.of(resolution.view)
        anew = resolve.resolve(facts, sightings.present(facts), decided)
        assert resolution.containers == anew.containers

    @invariant()
    def a_bubble_stays_as_it_is_until_its_pod_ends(self) -> None:
        now = self.chosen()
        for uid, grant in self.had.items():
            assert now[uid].parts == grant.parts
        self.had = {uid: grant for uid, grant in now.items() if grant.bubble}

    @invariant()
    def a_cpu_has_one_owner_and_only_the_shared_cpus_have_none(self) -> None:
        view = self.manager.snapshot().resolution.view
        owned = [grant.cpus for grant in view.chosen.values()]
        assert sum(map(len, owned)) == len(CPUSet.union(owned))
        assert view.default.cpus
        assert view.default.cpus.isdisjoint(CPUSet.union(owned))
        # The class refuses a second owner: so every grant can be added again.
        assert Grants(view.grants.all) == view.grants

    @invariant()
    def the_parts_of_a_bubble_are_apart_and_the_rest_is_what_they_leave(self) -> None:
        for pod in self.pods.values():
            grant = self.chosen().get(pod.cgroup_uid)
            if grant is None or not grant.bubble:
                continue
            kinds = {each.name: each.kind for each in pod.containers}
            lasting = [
                cpus
                for name, cpus in grant.parts.items()
                if name and kinds[name] is not ContainerKind.INIT
            ]
            taken = CPUSet.union(lasting)
            assert sum(map(len, lasting)) == len(taken)
            assert grant.rest == grant.cpus - taken

    @invariant()
    def every_container_runs_in_its_part_or_in_the_rest_and_nowhere_else(self) -> None:
        resolution = self.manager.snapshot().resolution
        for placed in resolution.containers.values():
            grant = resolution.view.chosen.get(placed.pod.cgroup_uid)
            if grant is None or not grant.bubble:
                others = CPUSet.union(each.cpus for each in self.had.values())
                assert placed.assignment.cpus.isdisjoint(others)
                continue
            inside = placed.container.kind is not ContainerKind.EPHEMERAL
            must = grant.parts.get(placed.container.name, grant.rest) if inside else CPUSet()
            online = must & resolution.online
            assert placed.assignment.cpus == (online or resolution.view.default.cpus)


Bubbles.TestCase.settings = examples(400, stateful_step_count=20)
TestBubbles = Bubbles.TestCase
