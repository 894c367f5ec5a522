"""CPUs that the node's CPU manager policy gives out, asked through the Manager."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core import environment
from cpupool.core.assignments import Cause, Placement
from cpupool.core.cgroups import FoundContainer
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind
from cpupool.manager.manager import Manager
from cpupool.policies.static.policy import StaticPolicy
from tests import builders
from tests.unit.manager.choosing.nodes import (
    LINES,
    MACHINE,
    POOLS,
    STATIC,
    Grasping,
    Greedy,
    Refusing,
    cpus_of,
    manager,
    on,
    owned,
    under,
    web,
)

if TYPE_CHECKING:
    from cpupool.policies.base import Choice, ChoiceRequest
    from cpupool.policies.view import NodeView


def test_a_container_gets_cpus_of_its_own_and_all_others_leave_them() -> None:
    first, plain = web("first", 2000), web("plain", 1500)
    node = manager(first, plain)

    assigned = node.snapshot().assignment((first.cgroup_uid, ContainerID("first-main-id")))
    assert assigned.placement is Placement.POLICY
    assert environment.of_container(assigned) == {"EXCLUSIVE_CPUS": "1-2"}
    assert cpus_of(node, plain, "plain-main") == "0,3-7"
    assert owned(node) == {"first-uid": "1-2"}


def test_a_pod_that_is_only_bound_to_the_node_has_nothing() -> None:
    assert owned(manager(web("bound", running=False))) == {}


def test_a_pod_keeps_its_cpus_until_it_ends_while_others_come_and_go() -> None:
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


def test_what_another_container_has_already_is_left_to_none() -> None:
    init = builders.container("init", ContainerKind.INIT, cpu=2000)
    main = builders.container("main", cpu=2000)
    node = manager(builders.pod("web", init, builders.container("side", cpu=500), main))
    resized = builders.pod("web", init, builders.container("side", cpu=1000), main)
    node.observe(pods=[resized])

    assert [cpus_of(node, resized, one) for one in ("init", "side", "main")] == ["1-2", "3", "1-2"]


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
        *LINES, Pool.named("shared_a", "10-11"), mixed=MixedCPUs("shared_a"), cpu_manager=STATIC
    )
    pod = builders.pod("web", builders.container(cpu=2000, shared_cpus=True))
    node = manager(pod, pools=mixed)

    assigned = node.snapshot().assignment((pod.cgroup_uid, ContainerID("main-id")))
    assert str(assigned.exclusive) == "1-2"
    assert environment.of_container(assigned) == {
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
        *LINES, Pool.named("shared_a", "10-11"), mixed=MixedCPUs("shared_a"), cpu_manager=STATIC
    )
    pod = builders.pod("web", builders.container(cpu=9000, shared_cpus=True))
    node = manager(pod, pools=mixed)
    assigned = node.snapshot().assignment((pod.cgroup_uid, ContainerID("main-id")))
    assert (assigned.cause, str(assigned.cpus)) == (Cause.MISFIT, "0-7")


def test_an_agent_that_starts_gives_nothing_before_it_has_seen_what_runs() -> None:
    running, new = web("running"), web("new")
    node = Manager()
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


def test_a_policy_that_gives_away_what_is_not_free_gives_nothing() -> None:
    first, second = web("first"), web("second")
    node = manager(
        first,
        second,
        pools=under(Greedy),
    )
    assert owned(node) == {"first-uid": "1"}
    assert cpus_of(node, second, "second-main") == "0,2-7"
    error = node.snapshot().resolution.view.refused[second.cgroup_uid].error
    assert "strange has chosen CPUs 1, which are not free" in str(error)


def test_nor_does_one_that_calls_available_what_is_not() -> None:
    first, second = web("first"), web("second", 2000)
    pods = [web(f"p{number}", 1000) for number in range(4)]
    node = manager(
        first,
        second,
        *pods,
        pools=under(Grasping),
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
    node = Manager()
    node.reconfigure(POOLS, MACHINE.without("2-7").topology())
    node.observe(pods=(web("first"), web("second")))
    node.adopt(())
    assert owned(node) == {"first-uid": "1"}
    node.update_topology(MACHINE.topology())
    assert owned(node) == {"first-uid": "1", "second-uid": "2"}


def test_a_policy_that_no_api_server_is_refused() -> None:
    node = Manager()
    pools = replace(POOLS, cpu_manager=CPUManager("zz"))
    with pytest.raises(ConfigError, match="there is no CPU manager policy 'zz'; use none, static"):
        node.reconfigure(pools, MACHINE.topology())


def test_another_policy_leaves_running_pods_what_they_have() -> None:
    first, second = web("first"), web("second", 2000)
    node = manager(first)
    none = NodePools.of(*LINES)
    node.reconfigure(none, MACHINE.topology())
    node.observe(pods=[first, second])
    assert owned(node) == {"first-uid": "1"}
    assert cpus_of(node, second, "second-main") == "0,2-7"

    node.reconfigure(POOLS, MACHINE.topology())
    assert owned(node) == {"first-uid": "1", "second-uid": "2-3"}


def test_under_the_policy_none_without_pools_all_others_run_everywhere() -> None:
    first, plain = web("first"), web("plain", 500)
    node = manager(first, plain, pools=NodePools.of(cpu_manager=STATIC))
    assert cpus_of(node, plain, "plain-main") == "0,2-15"
    node.reconfigure(NodePools.of(cpu_manager=CPUManager(declared=True)), MACHINE.topology())
    assert cpus_of(node, first, "first-main") == "1"
    node.observe(pods=[plain], idle=frozenset({"first-uid"}))
    assert cpus_of(node, plain, "plain-main") == "0-15"


def test_a_policy_that_is_not_lawful_here_changes_nothing() -> None:
    first = web("first")
    node = manager(first)
    with pytest.raises(ConfigError, match="paint it"):
        node.reconfigure(
            under(Refusing),
            MACHINE.topology(),
        )
    assert owned(node) == {"first-uid": "1"}
    assert node.pools() == POOLS


def test_a_device_of_a_pool_is_not_given_while_a_pod_has_its_cpu_by_the_policy() -> None:
    node = manager(web("first"))
    edited = NodePools.of(Pool.named("exclusive_a", "1,8-9"), Pool.named("default", "0,2-7"))
    node.reconfigure(edited, MACHINE.topology())
    healthy = {device.id: device.healthy for device in node.devices("exclusive_a").offer}
    assert healthy == {"1": False, "8": True, "9": True}


def test_held_replicas_cost_one_choice_and_no_memory_of_earlier_states() -> None:
    asked: list[int] = []

    class Counting(StaticPolicy):
        def choose(self, view: NodeView, request: ChoiceRequest) -> Choice:
            asked.append(request.count)
            return super().choose(view, request)

    node = Manager()
    node.reconfigure(under(Counting), MACHINE.topology())
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
