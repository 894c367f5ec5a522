"""In-place resizes under the policy `dynamic`, asked through the Manager.

The machine is that of the examples in KEP-5554 and KEP-6122: 12 CPUs, two threads a core, and NUMA
nodes of CPUs 0-5 and 6-11.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager, Misfit, StaticOptions, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import PlacementError
from cpupool.core.grants import PastResize, RecordedChange
from cpupool.core.names import POLICY_CPUS, Names
from cpupool.core.plugin_facts import PluginFacts
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.workloads import (
    ContainerID,
    ContainerRef,
    CPUMoves,
    Pod,
    RuntimeContainer,
)
from cpupool.manager import resizing
from cpupool.manager.manager import Manager
from cpupool.policies.dynamic.policy import DynamicPolicy
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.machines import Machine
from tests.unit.manager import plugged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.devices import NodesOfDevices

MACHINE = Machine(sockets=2, cores=3, threads=2, adjacent=True)
DYNAMIC = CPUManager("dynamic", reserved=CPUSet.of(0))
APP = ContainerRef("app-uid", "app")


def app(cpu: int, name: str = "app", **more: object) -> Pod:
    pod = builders.pod(name, builders.container(name, cpu=1000 * cpu))
    return replace(pod, **more)  # type: ignore[arg-type]


class Node:
    """A node, and what its kernel has done."""

    def __init__(
        self, *pods: Pod, settings: CPUManager = DYNAMIC, machine: Machine = MACHINE
    ) -> None:
        self.settings, self.machine = settings, machine
        self.manager = Manager()
        self.begin(*pods)

    def begin(self, *pods: Pod) -> None:
        pools = NodePools.of(Pool.named("default", "0-11"), cpu_manager=self.settings)
        self.manager.reconfigure(pools, MACHINE.topology())
        named: NodesOfDevices = {pod.cgroup_uid: {} for pod in pods}
        self.manager.observe(pods=pods, device_nodes=named)
        self.manager.adopt((), None)

    def runs_on(self, name: str = "app") -> str:
        """Give the CPUs on which a container must run."""
        placed = self.manager.snapshot().assignment((f"{name}-uid", ContainerID(f"{name}-id")))
        return str(placed.cpus)

    @property
    def own(self) -> resizing.OwnCPUs:
        return resizing.own_cpus(self.manager.snapshot(), {})[APP]

    @property
    def said(self) -> tuple[str, str, str]:
        """Give what is assigned to the application, where it runs, and where it began."""
        return str(self.own.assigned), str(self.own.in_force), str(self.own.baseline)

    @property
    def changes(self) -> Mapping[str, RecordedChange]:
        return self.manager.snapshot().resolution.view.chosen["app-uid"].changes

    def resize(self, count: int, unix_s: int | None = None) -> None:
        self.manager.resize(APP, count, unix_s)

    def end_notice(self) -> None:
        assert self.manager.narrow(APP, self.own.assigned, self.own.leaving)

    def read_back(self, cpus: str) -> None:
        runs = {APP: CPUSet.parse(cpus)}
        self.manager.settle(runs)

    def refuses(self, count: int, words: str) -> None:
        before = self.manager.snapshot()
        with pytest.raises(PlacementError, match=words):
            self.resize(count)
        assert self.manager.snapshot() == before

    @property
    def owned(self) -> CPUSet:
        return self.manager.snapshot().resolution.grants.cpus


def test_a_container_grows_beside_what_it_has_and_others_leave_at_once() -> None:
    node = Node(app(2), builders.pod("plain", builders.container("plain")))
    assert (node.said, node.runs_on("plain")) == (("2-3", "2-3", "2-3"), "0-1,4-11")
    node.resize(4)
    assert (node.said, node.runs_on("plain")) == (("2-5", "2-5", "2-3"), "0-1,6-11")
    assert node.runs_on() == "2-5"


def test_a_container_grows_on_its_own_core_first() -> None:
    node = Node(app(1, "aa"), app(3))
    assert (node.runs_on("aa"), node.runs_on()) == ("1", "2-4")
    node.manager.observe(pods=[app(3)], idle=frozenset({"aa-uid"}))
    node.resize(4)
    assert node.runs_on() == "2-5"


def test_a_single_numa_node_that_is_too_small_refuses() -> None:
    node = Node(app(2), settings=replace(DYNAMIC, topology_policy=TopologyPolicy.SINGLE_NUMA_NODE))
    node.refuses(8, "NUMA")
    node.resize(4)
    assert node.runs_on() == "2-5"


def test_a_shrink_keeps_the_baseline_and_stays_in_what_it_has() -> None:
    node = Node(app(4))
    node.resize(8)
    had = node.own.assigned
    node.resize(6)
    assert (str(had), node.said, node.runs_on()) == ("1-8", ("1-5,8", "1-8", "2-5"), "1-8")
    node.end_notice()
    assert (str(node.own.in_force), node.owned) == (node.runs_on(), had)
    node.read_back(node.runs_on())
    assert node.owned == node.own.assigned


def test_a_shrink_below_the_baseline_needs_the_word_of_the_pod() -> None:
    node = Node(app(4))
    word = "annotate its pod with nokia.k8s.io/cpu-moves: any"
    node.refuses(2, rf"keeps the CPUs 2-5 with which it began; {word}")
    node.manager.observe(pods=[app(4, cpu_moves=CPUMoves.ANY)])
    node.resize(2)
    assert node.own.assigned < CPUSet.parse("2-5")
    node.end_notice()
    node.read_back(node.runs_on())
    assert node.own.baseline == node.own.assigned


def test_a_refusal_names_the_annotation_in_the_domain_of_the_node() -> None:
    node = Node(app(4))
    node.manager = Manager(Names("example.com"))
    node.begin(app(4))
    node.refuses(2, r"annotate its pod with example\.com/cpu-moves: any")


@pytest.mark.parametrize(("second", "runs"), [(5, 5), (7, 7), (8, 8)])
def test_a_further_resize_in_the_notice(second: int, runs: int) -> None:
    node = Node(app(4))
    node.resize(8)
    had = node.own.assigned
    node.resize(6)
    six, left = node.own.assigned, node.own.leaving
    node.resize(second)
    assert (len(node.own.assigned), node.own.in_force, node.owned) == (runs, had, had)
    assert six < node.own.assigned or node.own.assigned < six
    assert not node.manager.narrow(APP, six, left)
    assert node.runs_on() == str(had)


def test_two_resizes_in_the_notice_take_no_cpu_that_it_does_not_tell() -> None:
    node = Node(app(4))
    node.resize(6)
    node.resize(4)
    told = node.own
    node.resize(8)
    node.resize(4)
    assert node.own.assigned == told.assigned
    assert not node.manager.narrow(APP, told.assigned, told.leaving)
    assert node.own.in_force > told.in_force
    node.end_notice()
    assert node.own.in_force == told.assigned


def test_a_resize_waits_until_the_last_one_is_complete() -> None:
    node = Node(app(4))
    node.resize(8)
    node.resize(6)
    node.end_notice()
    node.refuses(8, "has not left CPUs")
    node.read_back("0-11")
    node.refuses(8, "has not left CPUs")
    node.read_back(node.runs_on())
    node.resize(8)


def test_no_pod_gets_cpus_that_are_still_being_left_and_none_fails() -> None:
    node = Node(app(4), settings=replace(DYNAMIC, on_misfit=Misfit.FAIL))
    node.resize(10)
    node.resize(6)
    late = app(3, "late", created="2026-01-01T00:00:00Z")
    starts = RuntimeContainer(ContainerID("late-box"), "late-uid", "default", "late")
    waiting = replace(late, containers=tuple(replace(c, id=None) for c in late.containers))
    node.manager.observe(pods=[app(4), waiting])
    node.manager.observe_containers([starts])
    refusal = node.manager.snapshot().resolution.view.refused["late-uid"]
    assert (refusal.holds, refusal.reachable) == (True, True)
    node.end_notice()
    assert "late-uid" in node.manager.snapshot().resolution.view.refused
    node.read_back(node.runs_on())
    grants = node.manager.snapshot().resolution.grants
    assert len(grants.part("late-uid", POLICY_CPUS, "late")) == 3


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "request whole CPUs"),
        (12, "cpu 12 needs 8 more than the 4 that it owns, and 7 are free"),
    ],
)
def test_what_cannot_be_had_changes_nothing(count: int, words: str) -> None:
    Node(app(4)).refuses(count, words)


def test_the_containers_that_share_always_keep_a_cpu() -> None:
    reserved_none = replace(DYNAMIC, reserved=CPUSet())
    Node(app(4), settings=reserved_none).refuses(
        12, "8 more than the 4 that it owns, and 7 are free"
    )


def test_whole_cores_stay_whole() -> None:
    node = Node(app(2), settings=replace(DYNAMIC, options=StaticOptions(full_pcpus_only=True)))
    node.refuses(3, "whole cores|multiple")
    node.resize(4)
    assert node.runs_on() == "2-5"


@pytest.mark.parametrize("aligned", [TopologyPolicy.NONE, TopologyPolicy.BEST_EFFORT])
def test_a_half_of_a_core_is_passed_over_although_it_is_nearer(aligned: TopologyPolicy) -> None:
    """CPU 1 is on the core of the reserved CPU 0, and on the NUMA node of the application."""
    whole = StaticOptions(full_pcpus_only=True)
    settings = replace(DYNAMIC, options=whole, topology_policy=aligned)
    node = Node(app(2, "aa"), app(2), app(2, "bb"), app(2, "cc"), settings=settings)
    assert (node.runs_on(), str(node.owned)) == ("4-5", "2-9")
    node.resize(4)
    assert node.runs_on() == "4-5,10-11"


def test_a_container_that_shares_is_not_resized() -> None:
    node = Node(builders.pod("app", builders.container("app", cpu=1500)))
    with pytest.raises(PlacementError, match="no CPUs of its own"):
        node.resize(2)


def test_the_spec_alone_changes_nothing_and_the_reason_says_so() -> None:
    node = Node(app(2))
    node.manager.observe(pods=[app(4)])
    key = ("app-uid", ContainerID("app-id"))
    placed = node.manager.snapshot().assignment(key)
    assert (str(placed.cpus), placed.reason) == (
        "2-3",
        "it requests cpu 4, and has CPUs 2-3 until the kubelet resizes it",
    )


@pytest.mark.parametrize(
    ("own", "plain", "settled"),
    [("2-5", "0-1,6-11", True), ("2-3", "0-1,6-11", False), ("2-5", "0-1,5-11", False)],
)
def test_a_container_has_settled_when_it_is_alone_on_its_cpus(
    own: str, plain: str, *, settled: bool
) -> None:
    node = Node(app(2), builders.pod("plain", builders.container("plain")))
    node.resize(4)
    runs = {APP: CPUSet.parse(own), ContainerRef("plain-uid", "plain"): CPUSet.parse(plain)}
    assert resizing.own_cpus(node.manager.snapshot(), runs)[APP].settled == settled


def test_a_resize_that_no_agent_answered_is_followed() -> None:
    node = Node(app(2))
    seen = RuntimeContainer(ContainerID("app-id"), "app-uid", "default", "app", "app", owns=4)
    node.manager.observe_containers([seen])
    assert node.runs_on() == "2-3", "the pod requests what it has"
    node.manager.observe(pods=[app(4)])
    assert node.runs_on() == "2-5"
    node.manager.observe_containers([replace(seen, owns=40)])
    assert node.runs_on() == "2-5"


def test_a_runtime_that_has_forgotten_a_resize_takes_no_cpu_back() -> None:
    """CRI-O reads the shares of a container's creation when it starts."""
    node = Node(app(2))
    seen = RuntimeContainer(ContainerID("app-id"), "app-uid", "default", "app", "app", owns=2)
    node.manager.observe_containers([seen])
    node.manager.observe(pods=[app(4)])
    node.resize(4)
    node.manager.observe_containers([seen], every=True)
    assert node.said == ("2-5", "2-5", "2-3")
    # What the kubelet has allocated while no agent was there.
    node.manager.observe(pods=[app(6)])
    node.manager.observe_containers([replace(seen, owns=3)], every=True)
    assert node.said == ("2-4", "2-5", "2-3")


def test_a_container_that_starts_again_has_its_new_request_at_its_creation() -> None:
    """The pod has the `resizePolicy` RestartContainer: no update comes, but another container."""
    node = Node(app(2))
    first = RuntimeContainer(ContainerID("app-id"), "app-uid", "default", "app", "app", owns=2)
    sandbox = replace(first, id=ContainerID("sandbox"), name="", owns=None)
    node.manager.observe_containers([sandbox, first])
    node.manager.observe(pods=[app(4)])
    node.manager.forget_containers([first.id])
    node.manager.observe_containers([replace(first, id=ContainerID("again"), owns=4)])
    assert node.runs_on() == "2-5"


def test_a_container_that_begins_anew_leaves_at_once_what_it_gives_back() -> None:
    node = Node(app(4))
    node.resize(6)
    node.resize(5)
    node.manager.begin(APP, 5)
    assert (node.said, node.runs_on()) == (("1-5", "1-5", "2-5"), "1-5")
    node.read_back("")
    assert str(node.owned) == "1-5"


def test_a_container_that_begins_anew_keeps_no_baseline() -> None:
    node = Node(app(4))
    node.manager.begin(APP, 2)
    assert (node.said, node.runs_on()) == (("2-3", "2-3", "2-3"), "2-3")


@pytest.mark.parametrize("count", [0, 4, 40])
def test_what_a_container_that_begins_anew_cannot_have_changes_nothing(count: int) -> None:
    node = Node(app(4))
    before = node.manager.snapshot()
    node.manager.begin(APP, count)
    assert node.manager.snapshot() == before


def test_a_notice_ends_although_another_policy_has_come_meanwhile() -> None:
    node = Node(app(2))
    node.resize(4)
    node.resize(2)
    node.settings = replace(DYNAMIC, policy="static")
    pools = NodePools.of(Pool.named("default", "0-11"), cpu_manager=node.settings)
    node.manager.reconfigure(pools, MACHINE.topology())
    assert str(node.own.leaving) == "4-5"
    node.end_notice()
    node.read_back(node.runs_on())
    assert (node.runs_on(), str(node.owned)) == ("2-3", "2-3")


class Inheriting(DynamicPolicy):
    """The policy of a package."""

    __slots__ = ()


def test_a_policy_of_a_package_resizes_as_the_one_that_it_derives_from() -> None:
    node = Node(app(2), settings=replace(DYNAMIC, policy="inheriting", installed=Inheriting))
    node.resize(4)
    node.resize(2)
    assert (node.said, str(node.own.leaving)) == (("2-3", "2-5", "2-3"), "4-5")


class Restarted(Node):
    """The node after a restart of its agent, with what the record and the kernel have."""

    def __init__(
        self,
        before: Node,
        runs: str,
        annotated: str = "",
        *,
        record: bool = True,
        state: State | None = None,
    ) -> None:
        grant = before.manager.snapshot().resolution.view.chosen["app-uid"]
        self._state = state or State("dynamic")
        if record and state is None:
            entries, changes = {"app-uid": grant.parts}, {"app-uid": grant.changes}
            self._state = State("dynamic", entries=entries, changes=changes)
        self._runs, self._annotated = runs, annotated
        super().__init__(app(len(before.own.assigned)), settings=before.settings)

    def begin(self, *pods: Pod) -> None:
        pools = NodePools.of(Pool.named("default", "0-11"), cpu_manager=self.settings)
        self.manager.reconfigure(pools, MACHINE.topology())
        self.manager.observe(pods=pods)
        chosen = CPUSet.parse_or_empty(self._annotated)
        owns = pods[0].containers[0].whole_cpus
        self.manager.observe_containers([sighted(owns, chosen)])
        found = FoundContainer("app-uid", ContainerID("app-id"), "kubepods/app/app", self._runs)
        self.manager.adopt((found,), self._state)


def sighted(owns: int, chosen: CPUSet | None = None) -> RuntimeContainer:
    """Give the application's container as the runtime has it."""
    ids = (ContainerID("app-id"), "app-uid", "default", "app", "app")
    return RuntimeContainer(*ids, chosen=chosen or CPUSet(), owns=owns)


def grown_and_shrunk() -> Node:
    node = Node(app(4))
    node.resize(8, 1000)
    node.resize(6, 2000)
    return node


def test_a_restart_in_a_notice_begins_it_anew() -> None:
    node = grown_and_shrunk()
    runs = node.runs_on()
    again = Restarted(node, runs, annotated="2-5")
    assert (again.said, again.runs_on(), again.owned) == (node.said, runs, node.owned)
    again.end_notice()
    again.read_back(again.runs_on())
    assert len(again.owned) == 6


def test_a_restart_after_the_container_has_left_widens_nothing() -> None:
    node = grown_and_shrunk()
    node.end_notice()
    narrow = node.runs_on()
    again = Restarted(node, narrow, annotated="1-8")
    assert (again.runs_on(), str(again.owned)) == (narrow, narrow)
    assert str(again.own.baseline) == "2-5"


def test_a_restart_before_the_kernel_has_moved_it_keeps_all_its_cpus() -> None:
    node = grown_and_shrunk()
    wide = node.runs_on()
    node.end_notice()
    again = Restarted(node, wide, annotated="2-5")
    assert (again.runs_on(), again.said) == (wide, grown_and_shrunk().said)


def test_what_a_pod_leaves_that_the_api_server_forgot_has_no_other_owner() -> None:
    before = grown_and_shrunk()
    grant = before.manager.snapshot().resolution.view.chosen["app-uid"]
    record = State("dynamic", entries={"app-uid": grant.parts}, changes={"app-uid": grant.changes})
    node = Node()
    ids = ("app-uid", ContainerID("app-id"), "kubepods/app/app")
    node.manager.adopt((FoundContainer(*ids, "0-7"),), record)
    assert (str(grant.cpus), str(node.owned)) == ("1-8", "1-8")
    # The rest has no process on the other CPUs.
    node = Node()
    node.manager.adopt((FoundContainer(*ids, "1-5,8"),), record)
    assert str(node.owned) == "1-5,8"


def test_without_a_record_a_grown_container_keeps_what_it_runs_on() -> None:
    node = Node(app(2))
    node.resize(4)
    assert Restarted(node, "2-5", record=False).runs_on() == "2-5"


def test_a_record_that_the_cgroup_contradicts_is_not_believed() -> None:
    node = grown_and_shrunk()
    again = Restarted(node, "2-5,8-9", annotated="2-5,8-9")
    assert again.runs_on() == "2-5,8-9"


def test_a_shrink_is_believed_although_another_program_has_written_the_cgroup() -> None:
    node = Node(app(4, cpu_moves=CPUMoves.ANY))
    node.resize(2)
    node.end_notice()
    node.read_back(node.runs_on())
    again = Restarted(node, "0-11", annotated="2-5")
    assert (again.owned, again.own.baseline) == (node.owned, node.own.baseline)


def test_without_a_record_a_container_takes_nothing_back_that_it_gave() -> None:
    node = Node(app(4, cpu_moves=CPUMoves.ANY))
    node.resize(2)
    assert Restarted(node, "2-3", annotated="2-5", record=False).owned == node.own.assigned


@pytest.mark.parametrize(
    ("entries", "change"),
    [
        ({}, RecordedChange(CPUSet.parse("2-3"), CPUSet.parse("2-5"))),
        ({"app": CPUSet.parse("2-5")}, RecordedChange(CPUSet.parse("9"))),
    ],
)
def test_a_recorded_change_of_other_cpus_than_the_recorded_ones_is_not_believed(
    entries: Mapping[str, CPUSet], change: RecordedChange
) -> None:
    state = State("dynamic", entries={"app-uid": entries}, changes={"app-uid": {"app": change}})
    again = Restarted(Node(app(4)), "2-5", annotated="2-5", state=state)
    assert again.said == ("2-5", "2-5", "2-5")


def test_the_record_names_what_has_changed() -> None:
    node = grown_and_shrunk()
    left = node.own.in_force - node.own.assigned
    resizes = (
        PastResize(CPUSet.parse("2-5"), CPUSet.parse("1-8"), 1000),
        PastResize(CPUSet.parse("1-8"), CPUSet.parse("1-5,8"), 2000),
    )
    assert node.changes == {"app": RecordedChange(CPUSet.parse("2-5"), left, resizes)}
    again = Restarted(node, node.runs_on(), annotated="2-5")
    assert again.changes == node.changes


def test_a_resize_that_no_agent_has_answered_has_no_time() -> None:
    node = Node(app(2))
    node.manager.observe_containers([sighted(owns=2)])
    node.manager.observe(pods=[app(4)])
    node.manager.observe_containers([sighted(owns=4)])
    (resize,) = node.changes["app"].resizes
    assert resize == PastResize(CPUSet.parse("2-3"), CPUSet.parse("2-5"))


def test_a_container_that_begins_again_with_fewer_cpus_remembers_the_resize() -> None:
    node = Node(app(2))
    node.manager.begin(APP, 1, 3000)
    assert [resize.unix_s for resize in node.changes["app"].resizes] == [3000]


def test_without_a_notice_cpus_leave_with_the_answer() -> None:
    node = Node(app(2, notice_s=0))
    node.resize(4)
    node.resize(3)
    assert (node.said, node.runs_on()) == (("2-4", "2-4", "2-3"), "2-4")
    assert str(node.owned) == "2-5", "the kernel has not read them back"
    node.refuses(4, "has not left CPUs")
    node.read_back("2-4")
    assert str(node.owned) == "2-4"


def test_the_shared_cpus_of_a_mixed_container_are_not_among_its_own() -> None:
    pools = NodePools.of(
        Pool.named("default", "0-9"),
        Pool.named("shared_m", "10-11"),
        mixed=MixedCPUs("shared_m"),
        cpu_manager=DYNAMIC,
    )
    manager = Manager()
    manager.reconfigure(pools, MACHINE.topology())
    made = builders.container("app", cpu=2000, shared_cpus=True)
    manager.observe(pods=[builders.pod("app", made)])
    manager.adopt(())
    found = FoundContainer("app-uid", "app-id", "kubepods/app/app", "6-7,10-11")
    runs = resizing.runs_on(manager.snapshot().resolution, (found,))
    assert runs == {APP: CPUSet.parse("6-7")}
    assert resizing.own_cpus(manager.snapshot(), runs)[APP].settled


def test_what_a_plugin_changes_is_in_force_at_once() -> None:
    own, ref = plugged.pod("own"), plugged.ref("own")

    def answered(text: str) -> PluginFacts:
        return PluginFacts(frozenset({"cpu"}), {ref: {"cpu": plugged.cpus(text, exclusive=True)}})

    manager = plugged.manager(own, given=answered("2-3").answers)
    manager.observe(plugins=answered("3-4"))
    now, runs = manager.snapshot(), {ref: CPUSet.parse("2-3")}
    assert resizing.own_cpus(now, runs) == {
        ref: resizing.OwnCPUs(
            *(CPUSet.parse("3-4"),) * 2,
            *(CPUSet(),) * 2,
            notice_s=10,
            settled=False,
            cause=resizing.Reason.PLUGIN,
        )
    }
    assert str(now.resolution.grants.cpus) == "3-4", "the plugin may give CPU 2 to another"


def test_own_cpus_are_settled_once_the_kernel_has_them() -> None:
    node = Node(app(2))
    node.resize(4)
    for runs, settled in (("2-3", False), ("2-5", True), ("", True)):
        found = {APP: CPUSet.parse(runs)} if runs else {}
        own = resizing.own_cpus(node.manager.snapshot(), found)[APP]
        assert own.settled == settled, runs


def test_a_record_of_before_a_shrink_that_could_not_be_written_takes_nothing_back() -> None:
    node = Node(app(2))
    node.resize(6)
    grant = node.manager.snapshot().resolution.view.chosen["app-uid"]
    stale = State("dynamic", entries={"app-uid": grant.parts}, changes={"app-uid": grant.changes})
    node.resize(4)
    node.end_notice()
    again = Restarted(node, node.runs_on(), annotated="2-3", state=stale)
    assert (again.said, str(again.owned)) == (("2-5", "2-5", "2-3"), "2-5")
