"""CPUs that the node's CPU manager policy gives out, asked through the Manager."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import Cause, Placement
from cpupool.core.cpu_manager import CPU_MANAGER_POLICIES, CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, Problem
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind
from cpupool.manager.manager import Manager
from cpupool.manager.ports import FoundContainer
from cpupool.policies.base import Choice
from cpupool.policies.built_in import BUILT_IN
from cpupool.policies.static import StaticPolicy
from tests import builders
from tests.machines import MACHINES
from tests.runtimes import told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod, RuntimeContainer
    from cpupool.policies.base import Ask, NodeView

MACHINE = MACHINES["arm_no_smt"]
_LINES = (Pool.named("exclusive_a", "8-9"), Pool.named("default", "0-7"))
STATIC = CPUManager("static", reserved=CPUSet.of(0))
POOLS = NodePools.of(*_LINES, cpu_manager=STATIC)


@dataclass(frozen=True, slots=True)
class Grasping(StaticPolicy):
    """Calls every CPU available."""

    def available(self, view: NodeView) -> CPUSet:
        return view.topology.present


@dataclass(frozen=True, slots=True)
class Greedy(StaticPolicy):
    """Gives the same CPU to everybody."""

    def choose(self, _view: NodeView, ask: Ask) -> Choice:
        return Choice(CPUSet(range(1, 1 + ask.count)))


def refusing(_pools: NodePools, _machine: CPUTopology) -> StaticPolicy:
    raise ConfigError([Problem("it is red", "paint it", path="cpuManager.policy")])


POLICIES = {
    **BUILT_IN,
    "greedy": Greedy.of_pools,
    "grasping": Grasping.of_pools,
    "refusing": refusing,
}


def manager(
    *pods: Pod,
    pools: NodePools = POOLS,
    found: tuple[FoundContainer, ...] = (),
    recorded: Mapping[str, Mapping[str, str]] | None = None,
    living: tuple[RuntimeContainer, ...] = (),
    offline: str = "",
) -> Manager:
    """Make a node whose agent has looked at every cgroup once.

    Args:
        pods: its pods.
        pools: its pool file.
        found: the containers that have a cgroup.
        recorded: the agent's record: the id in a pod's cgroup → container → CPUs.
        living: what the runtime tells of containers.
        offline: CPUs that are offline.
    """
    node = Manager(cpu_managers=POLICIES)
    node.reconfigure(pools, MACHINE.without(offline).topology())
    node.observe(pods=pods)
    node.observe_containers(living)
    entries = {
        uid: {name: CPUSet.parse(cpus) for name, cpus in containers.items()}
        for uid, containers in (recorded or {}).items()
    }
    node.adopt(found, entries)
    return node


def web(name: str, cpu: int = 1000, *, running: bool = True) -> Pod:
    return builders.pod(name, builders.container(f"{name}-main", cpu=cpu, running=running))


def on(pod: Pod, cpus: str) -> FoundContainer:
    (container,) = pod.containers
    assert container.id is not None
    return FoundContainer(pod.cgroup_uid, container.id, f"kubepods/{pod.name}/main", cpus)


def cpus_of(node: Manager, pod: Pod, container: str) -> str:
    placed = node.snapshot().assignment((pod.cgroup_uid, ContainerID(f"{container}-id")))
    return str(placed.cpus)


def owned(node: Manager) -> dict[str, str]:
    return {
        uid: str(has[POLICY_CPUS])
        for uid, has in builders.owned(node).items()
        if POLICY_CPUS in has
    }


def test_a_container_gets_cpus_of_its_own_and_all_others_leave_them() -> None:
    first, plain = web("first", 2000), web("plain", 1500)
    node = manager(first, plain)

    assigned = node.snapshot().assignment((first.cgroup_uid, ContainerID("first-main-id")))
    assert assigned.placement is Placement.POLICY
    assert assigned.environment == {"EXCLUSIVE_CPUS": "1-2"}
    assert cpus_of(node, plain, "plain-main") == "0,3-7"
    assert owned(node) == {"first-uid": "1-2"}


def test_a_pod_that_is_only_bound_to_the_node_has_nothing() -> None:
    assert owned(manager(web("bound", running=False))) == {}


def test_a_pod_keeps_its_cpus_whoever_comes_and_goes_until_it_ends() -> None:
    first, second, third = web("first"), web("second"), web("third")
    node = manager(first, second)
    node.observe(pods=[second, third])
    assert owned(node) == {"first-uid": "1", "second-uid": "2", "third-uid": "3"}
    node.observe(idle=frozenset({"first-uid"}))
    assert owned(node) == {"second-uid": "2", "third-uid": "3"}
    node.observe(pods=[replace(second, finished=True), third])
    assert owned(node) == {"second-uid": "2", "third-uid": "3"}
    node.observe(idle=frozenset({"second-uid"}))
    assert owned(node) == {"third-uid": "3"}


def test_what_an_init_container_leaves_goes_to_the_other_containers_of_its_pod() -> None:
    pod = builders.pod(
        "web",
        builders.container("init", ContainerKind.INIT, cpu=3000),
        builders.container("side", ContainerKind.SIDECAR, cpu=1000),
        builders.container("main", cpu=2000),
    )
    other = web("younger")
    node = manager(pod, other)

    assert cpus_of(node, pod, "init") == "1-3"
    assert {cpus_of(node, pod, one) for one in ("side", "main")} == {"1", "2-3"}
    assert owned(node) == {"web-uid": "1-3", "younger-uid": "4"}


def test_a_pod_that_does_not_fit_shares_until_it_does() -> None:
    large, late = web("large", 6000), web("late", 2000)
    node = manager(large, late)
    assert cpus_of(node, late, "late-main") == "0,7"

    node.observe(pods=[late], idle=frozenset({"large-uid"}))
    assert cpus_of(node, late, "late-main") == "1-2"


def test_a_pod_with_devices_of_a_pool_is_not_the_policys() -> None:
    pod = builders.pod("pooled", builders.container(exclusive_a=1, cpu=1000))
    node = manager(pod)
    node.accept(builders.given(pod, exclusive_a="8"))
    assert cpus_of(node, pod, "main") == "8"
    assert owned(node) == {}


def test_shared_cpus_by_openshifts_resource_come_beside_own_cpus() -> None:
    mixed = NodePools.of(
        *_LINES, Pool.named("shared_a", "10-11"), mixed=MixedCPUs("shared_a"), cpu_manager=STATIC
    )
    pod = builders.pod("web", builders.container(cpu=2000, shared_cpus=True))
    node = manager(pod, pools=mixed)

    assigned = node.snapshot().assignment((pod.cgroup_uid, ContainerID("main-id")))
    assert str(assigned.exclusive) == "1-2"
    assert assigned.environment == {
        "EXCLUSIVE_CPUS": "1-2",
        "OPENSHIFT_ISOLATED_CPUS": "1-2",
        "OPENSHIFT_SHARED_CPUS": "10-11",
        "SHARED_CPUS": "10-11",
    }
    # It keeps what it has when another policy comes into force.
    node.reconfigure(replace(mixed, cpu_manager=CPUManager()), MACHINE.topology())
    assert cpus_of(node, pod, "main") == "1-2,10-11"
    # Without the feature it has its own CPUs alone.
    node.reconfigure(replace(mixed, mixed=None), MACHINE.topology())
    assert cpus_of(node, pod, "main") == "1-2"


def test_a_refused_pod_with_shared_cpus_is_refused_for_its_own() -> None:
    mixed = NodePools.of(
        *_LINES, Pool.named("shared_a", "10-11"), mixed=MixedCPUs("shared_a"), cpu_manager=STATIC
    )
    pod = builders.pod("web", builders.container(cpu=9000, shared_cpus=True))
    node = manager(pod, pools=mixed)
    assigned = node.snapshot().assignment((pod.cgroup_uid, ContainerID("main-id")))
    assert (assigned.cause, str(assigned.cpus)) == (Cause.MISFIT, "0-7")


def test_an_agent_that_starts_gives_nothing_before_it_has_seen_what_runs() -> None:
    running, new = web("running"), web("new")
    node = Manager(cpu_managers=POLICIES)
    node.reconfigure(POOLS, MACHINE.topology())
    node.observe(pods=[new, running])
    assert owned(node) == {}

    node.adopt([on(running, "1"), on(new, "0-7")])
    assert owned(node) == {"running-uid": "1", "new-uid": "2"}


@pytest.mark.parametrize(
    "cpus",
    [
        pytest.param("3-4", id="more than it asks for"),
        pytest.param("0", id="a reserved one"),
        pytest.param("9", id="another pool's"),
        pytest.param("", id="none"),
        pytest.param("x", id="no CPU list"),
    ],
)
def test_what_the_policy_cannot_have_given_is_not_taken_over(cpus: str) -> None:
    pod = web("web")
    assert owned(manager(pod, found=(on(pod, cpus),))) == {"web-uid": "1"}


def test_of_two_that_run_on_a_cpu_the_first_keeps_it() -> None:
    first, second = web("first"), web("second")
    node = manager(first, second, found=(on(first, "5"), on(second, "5")))
    assert owned(node) == {"first-uid": "5", "second-uid": "1"}


def test_containers_that_had_none_yet_get_theirs_beside_what_their_pod_has() -> None:
    pod = builders.pod(
        "web", builders.container("main", cpu=1000), builders.container("other", cpu=2000)
    )
    (main, _) = pod.containers
    assert main.id is not None
    found = FoundContainer(pod.cgroup_uid, main.id, "kubepods/web/main", "2")
    node = manager(pod, found=(found,))
    assert cpus_of(node, pod, "main") == "2"
    assert cpus_of(node, pod, "other") == "1,3"


def test_a_policy_that_gives_away_what_is_not_free_gives_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = web("first"), web("second")
    node = manager(
        first, second, pools=replace(POOLS, cpu_manager=replace(STATIC, policy="greedy"))
    )
    assert owned(node) == {"first-uid": "1"}
    assert cpus_of(node, second, "second-main") == "0,2-7"
    assert "policy has chosen CPUs that it cannot give" in caplog.text


def test_nor_does_one_that_calls_available_what_is_not() -> None:
    first, second = web("first"), web("second", 2000)
    pods = [web(f"p{number}", 1000) for number in range(4)]
    node = manager(
        first, second, *pods, pools=replace(POOLS, cpu_manager=replace(STATIC, policy="grasping"))
    )
    owned_cpus = [CPUSet.parse(cpus) for cpus in owned(node).values()]
    assert sum(map(len, owned_cpus)) == len(CPUSet.union(owned_cpus))
    assert CPUSet.union(owned_cpus) <= CPUSet.parse("0-7")
    assert {len(one) for one in owned_cpus} == {1, 2}


def test_a_restart_gives_nothing_to_an_init_container_that_has_ended() -> None:
    pod = builders.pod(
        "web",
        builders.container("init", ContainerKind.INIT, running=False, cpu=3000),
        builders.container("main", cpu=3000),
    )
    other = web("other", 2000)
    found = FoundContainer(pod.cgroup_uid, ContainerID("main-id"), "kubepods/web/main", "1-3")
    node = manager(pod, other, found=(found,))
    assert owned(node) == {"web-uid": "1-3", "other-uid": "4-5"}


def test_two_lives_of_a_container_have_the_cpus_of_one() -> None:
    pod = web("web")
    node = manager(pod, found=(on(pod, "5"),))
    again = FoundContainer(pod.cgroup_uid, ContainerID("web-main-id"), "kubepods/web/main", "7")
    node.adopt((again,))
    assert owned(node) == {"web-uid": "5"}


def test_cpus_that_the_machine_shows_later_are_given_too() -> None:
    node = Manager(cpu_managers=POLICIES)
    node.reconfigure(POOLS, MACHINE.without("2-7").topology())
    node.observe(pods=(web("first"), web("second")))
    node.adopt(())
    assert owned(node) == {"first-uid": "1"}
    node.update_topology(MACHINE.topology())
    assert owned(node) == {"first-uid": "1", "second-uid": "2"}


def test_a_policy_that_no_api_server_is_refused() -> None:
    node = Manager(cpu_managers=POLICIES)
    pools = replace(POOLS, cpu_manager=CPUManager("zz"))
    with pytest.raises(ConfigError, match="there is no CPU manager policy 'zz'; use none, static"):
        node.reconfigure(pools, MACHINE.topology())


def test_every_policy_that_a_pool_file_can_name_is_there() -> None:
    assert tuple(BUILT_IN) == CPU_MANAGER_POLICIES


def test_another_policy_leaves_running_pods_what_they_have() -> None:
    first, second = web("first"), web("second", 2000)
    node = manager(first)
    none = NodePools.of(*_LINES)
    node.reconfigure(none, MACHINE.topology())
    node.observe(pods=[first, second])
    assert owned(node) == {"first-uid": "1"}
    assert cpus_of(node, second, "second-main") == "0,2-7"

    node.reconfigure(POOLS, MACHINE.topology())
    assert owned(node) == {"first-uid": "1", "second-uid": "2-3"}


def test_a_policy_that_is_not_lawful_here_changes_nothing() -> None:
    first = web("first")
    node = manager(first)
    with pytest.raises(ConfigError, match="paint it"):
        node.reconfigure(replace(POOLS, cpu_manager=CPUManager("refusing")), MACHINE.topology())
    assert owned(node) == {"first-uid": "1"}
    assert node.pools() == POOLS


def test_a_device_of_a_pool_is_not_given_while_a_pod_has_its_cpu_by_the_policy() -> None:
    node = manager(web("first"))
    edited = NodePools.of(Pool.named("exclusive_a", "1,8-9"), Pool.named("default", "0,2-7"))
    node.reconfigure(edited, MACHINE.topology())
    healthy = {device.id: device.healthy for device in node.devices("exclusive_a").offer}
    assert healthy == {"1": False, "8": True, "9": True}


def annotated(pod: Pod, cpus: str) -> RuntimeContainer:
    """Give what the runtime tells of a pod's only container, with an agent's annotation."""
    (container,) = pod.containers
    known = told(pod.cgroup_uid, container.name)
    return replace(known, chosen=CPUSet.parse(cpus))


def test_the_best_source_of_an_earlier_choice_counts() -> None:
    first, second, third, fourth = map(web, ("first", "second", "third", "fourth"))
    node = manager(
        *(first, second, third, fourth),
        living=(annotated(first, "7"),),
        recorded={"first-uid": {"first-main": "6"}, "second-uid": {"second-main": "6"}},
        found=tuple(on(pod, "5") for pod in (first, second, third)),
    )
    assert owned(node) == {
        "first-uid": "7",
        "second-uid": "6",
        "third-uid": "5",
        "fourth-uid": "1",
    }


@pytest.mark.parametrize(
    "cpus",
    [
        pytest.param("3-4", id="more than it asks for"),
        pytest.param("", id="none"),
        pytest.param("99", id="a CPU that the machine does not have"),
        pytest.param("8", id="a CPU of another pod's devices"),
    ],
)
@pytest.mark.parametrize("source", ["annotation", "record"])
def test_a_forged_choice_is_not_believed(source: str, cpus: str) -> None:
    owner = builders.pod("owner", builders.container(exclusive_a=1))
    pod = web("web")
    node = Manager(cpu_managers=POLICIES)
    node.reconfigure(POOLS, MACHINE.topology())
    node.observe(pods=[owner, pod])
    node.accept(builders.given(owner, exclusive_a="8"))
    if source == "annotation":
        node.observe_containers([annotated(pod, cpus)])
        node.adopt(())
    else:
        node.adopt((), {"web-uid": {"web-main": CPUSet.parse(cpus)}})
    assert owned(node) == {"web-uid": "1"}


def test_of_two_pods_with_the_same_recorded_cpu_the_older_has_it() -> None:
    old, new = replace(web("b"), created="2026-01-01"), replace(web("a"), created="2026-01-02")
    same = {"a-uid": {"a-main": "5"}, "b-uid": {"b-main": "5"}}
    assert owned(manager(new, old, recorded=same)) == {"b-uid": "5", "a-uid": "1"}


def test_entries_of_pods_and_containers_that_are_not_there_count_for_nothing() -> None:
    pooled = builders.pod("pooled", builders.container(exclusive_a=1, cpu=1000))
    node = manager(
        *(web("web"), pooled),
        recorded={
            "gone-uid": {"main": "1"},
            "web-uid": {"other": "2"},
            "pooled-uid": {"main": "3"},
        },
    )
    assert owned(node) == {"web-uid": "1"}


def test_only_an_init_container_shares_recorded_cpus_with_a_later_one() -> None:
    pod = builders.pod(
        "web",
        builders.container("init", ContainerKind.INIT, cpu=2000),
        builders.container("side", ContainerKind.SIDECAR, cpu=1000),
        builders.container("main", cpu=1000),
        builders.container("other", cpu=1000),
    )
    lawful = {"init": "4-5", "side": "4", "main": "5", "other": "6"}
    node = manager(pod, recorded={"web-uid": lawful})
    assert {name: cpus_of(node, pod, name) for name in lawful} == lawful

    forged = {**lawful, "main": "4", "other": "5"}
    node = manager(pod, recorded={"web-uid": forged})
    assert {name: cpus_of(node, pod, name) for name in forged} == {**forged, "main": "1"}


def test_a_restart_gives_an_init_container_its_recorded_cpus() -> None:
    pod = builders.pod(
        "web",
        builders.container("init", ContainerKind.INIT, cpu=3000),
        builders.container("main", running=False, cpu=2000),
    )
    recorded = {"web-uid": {"init": "4-6", "main": "4-5"}}
    node = manager(pod, web("other", 2000), recorded=recorded)
    assert cpus_of(node, pod, "init") == "4-6"
    assert owned(node) == {"web-uid": "4-6", "other-uid": "1-2"}


@pytest.mark.parametrize("source", ["annotation", "record"])
def test_a_container_keeps_a_cpu_that_is_offline_at_the_restart(source: str) -> None:
    pod, other = web("web", 2000), web("other")
    if source == "annotation":
        node = manager(pod, other, living=(annotated(pod, "1-2"),), offline="2")
    else:
        node = manager(pod, other, recorded={"web-uid": {"web-main": "1-2"}}, offline="2")
    assert cpus_of(node, pod, "web-main") == "1"
    node.update_topology(MACHINE.topology())
    assert cpus_of(node, pod, "web-main") == "1-2"
    assert owned(node) == {"web-uid": "1-2", "other-uid": "3"}


def test_no_recorded_cpu_is_a_sibling_of_a_core_that_another_pod_has_as_a_whole() -> None:
    machine = MACHINES["laptop_4c8t"]
    pools = NodePools.of(
        Pool.named("exclusive_a", "1"),
        Pool.named("default", "4-7"),
        cpu_manager=replace(STATIC, reserved=CPUSet.of(4)),
    )
    owner, pod = builders.pod("owner", builders.container(exclusive_a=1)), web("web")
    node = Manager(cpu_managers=POLICIES)
    node.reconfigure(pools, machine.topology())
    node.observe(pods=[owner, pod])
    node.accept(builders.given(owner, exclusive_a="1"))
    (sibling,) = machine.topology().with_siblings(CPUSet.of(1)) - CPUSet.of(1)
    node.adopt((), {"web-uid": {"web-main": CPUSet.of(sibling)}})
    assert owned(node) == {"web-uid": "5"}


def test_under_the_policy_none_a_pod_keeps_what_is_recorded() -> None:
    pod = web("web")
    node = manager(pod, pools=NodePools.of(*_LINES), recorded={"web-uid": {"web-main": "3"}})
    assert cpus_of(node, pod, "web-main") == "3"
    # Where it runs does not say that a policy chose this.
    assert owned(manager(pod, pools=NodePools.of(*_LINES), found=(on(pod, "3"),))) == {}


def test_nothing_is_recovered_where_the_kubelet_gives_out_cpus() -> None:
    shared = NodePools.of(Pool.named("shared_a", "8-9"), mixed=MixedCPUs("shared_a"))
    node = Manager(cpu_managers=POLICIES)
    node.observe(static_cpus=CPUSet.parse("0-7"), pods=[web("web")])
    node.reconfigure(shared, MACHINE.topology())
    node.adopt((), {"web-uid": {"web-main": CPUSet.of(3)}})
    assert owned(node) == {}


def test_held_replicas_cost_one_choice_and_no_memory_of_earlier_states() -> None:
    asked: list[int] = []

    class Counting(StaticPolicy):
        def choose(self, view: NodeView, ask: Ask) -> Choice:
            asked.append(ask.count)
            return super().choose(view, ask)

    node = Manager(cpu_managers={"static": Counting.of_pools})
    node.reconfigure(POOLS, MACHINE.topology())
    node.adopt(())
    replicas = [web(f"replica-{number}", 9000) for number in range(30)]
    node.observe(pods=[*replicas, web("served")])
    # One choice finds whether a replica fits now; another, whether it fits once others have ended.
    assert asked.count(9) == 2
    resolution = node.snapshot().resolution
    assert owned(node) == {"served-uid": "1"}
    assert set(resolution.view.refused) == {pod.cgroup_uid for pod in replicas}
    # A traceback has the frames that made the error, with the whole state before.
    assert all(refusal.error.__traceback__ is None for refusal in resolution.view.refused.values())


def test_replicas_that_fit_after_another_pod_has_ended_get_cpus_one_after_the_other() -> None:
    big, replicas = web("big", 7000), [web(f"replica-{number}", 3000) for number in range(3)]
    node = manager(big, *replicas)
    node.observe(pods=replicas, idle=frozenset({"big-uid"}))
    assert owned(node) == {"replica-0-uid": "1-3", "replica-1-uid": "4-6"}
    refusal = node.snapshot().resolution.view.refused["replica-2-uid"]
    assert not refusal.reachable
