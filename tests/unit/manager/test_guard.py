"""A policy of a package that has bugs: its pods wait, and nobody gets another pod's CPUs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.core.cpu_manager import CPUManager, Misfit, TopologyPolicy
from cpupool.core.cpu_time import CPUUse
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError
from cpupool.core.grants import WHOLE_POD
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.manager.manager import Manager
from cpupool.policies.base import Choice, CPUManagerPolicy
from cpupool.policies.built_in import assignable
from cpupool.policies.hints import ResourceHints
from cpupool.policies.view import DEFAULT
from tests import builders
from tests.machines import MACHINES
from tests.policies import LowestCPUs
from tests.unit.manager.choosing.nodes import cpus_of, owned, web

if TYPE_CHECKING:
    from collections.abc import Callable

    from cpupool.core.workloads import Pod
    from cpupool.policies.view import NodeView

MACHINE = MACHINES["arm_no_smt"]
POOLS = NodePools.of(Pool.named("default", "0-7"), Pool.named("exclusive_a", "8-9"))
REMEDY = "correct the policy, or name another in the pool file"
FIRST, WEB = web("first"), web("web")


def policy(**methods: Callable[..., Any] | property) -> type[CPUManagerPolicy]:
    """Return a policy with bugs in these methods."""
    return type("Bad", (LowestCPUs,), methods)


def node(kind: type[CPUManagerPolicy], *pods: Pod, misfit: Misfit = Misfit.HOLD) -> Manager:
    made = Manager()
    manager = CPUManager("bad", on_misfit=misfit, installed=kind)
    made.reconfigure(replace(POOLS, cpu_manager=manager), MACHINE.topology())
    made.adopt(())
    made.observe(pods=pods, device_nodes={pod.cgroup_uid: {} for pod in pods})
    return made


def raises(*_args: object) -> Any:
    raise KeyError("socket")


def exits(*_args: object) -> Any:
    raise SystemExit(0)


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raises_what_has_no_words(*_args: object) -> Any:
    raise Speechless


def refusal(manager: Manager, pod: Pod = WEB) -> tuple[str, bool]:
    """Return why a pod has no CPUs of its own, and whether it is held."""
    found = manager.snapshot().resolution.view.refused[pod.cgroup_uid]
    return str(found.error), found.holds


def aligned(*_args: object) -> TopologyPolicy:
    return TopologyPolicy.BEST_EFFORT


@pytest.mark.parametrize(
    "methods",
    [
        {"requests": raises},
        {"choose": raises},
        {"narrowed": raises},
        {"hints": raises, "asked_alignment": aligned},
        {"choose": exits},
        {"choose": raises_what_has_no_words},
    ],
    ids=lambda methods: next(iter(methods)),
)
def test_a_pod_is_held_while_its_choice_fails(methods: dict[str, Any]) -> None:
    manager = node(policy(**methods), WEB)
    assert owned(manager) == {}
    said, held = refusal(manager)
    assert said.startswith("the CPU manager policy bad has failed: ")
    assert said.endswith(f"; {REMEDY}")
    assert held
    assert cpus_of(manager, WEB, "web-main") == "0-7"


def test_it_shares_where_the_pool_file_says_so() -> None:
    manager = node(policy(choose=raises), WEB, misfit=Misfit.SHARE)
    assert refusal(manager)[1] is False


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        (Choice(CPUSet()), "has chosen 0 CPUs () of 1 requested"),
        (Choice(CPUSet.parse("1-2")), "has chosen 2 CPUs (1-2) of 1 requested"),
        (Choice(CPUSet.of(8)), "has chosen CPUs 8, which are not free"),
        (
            Choice(CPUSet.of(1), parts={"web-main": CPUSet.of(3)}),
            "has failed: ValueError: {'web-main': CPUSet.parse('3')} are no parts of its choice",
        ),
        (CPUSet.of(1), "has failed: TypeError: CPUSet.parse('1') is no Choice"),
        (Choice(frozenset({1})), "has failed: TypeError: frozenset({1}) is no CPUSet"),  # type: ignore[arg-type]
        (Choice(CPUSet.of(1), steps=("why",)), "has failed: TypeError: 'why' is no Step"),  # type: ignore[arg-type]
        (
            Choice(CPUSet.of(1), parts={"nobody": CPUSet.of(1)}),
            "has failed: ValueError: {'nobody':",
        ),
        (
            Choice(CPUSet.of(1), parts={"web-main": CPUSet()}),
            "has failed: ValueError: {'web-main':",
        ),
        (
            Choice(CPUSet.of(1), bubble=True),
            "has failed: ValueError: a bubble is a pod's, and no container's",
        ),
        (Choice(CPUSet.of(1), bubble="yes"), "has failed: TypeError: 'yes' is no bool"),  # type: ignore[arg-type]
    ],
)
def test_a_choice_that_breaks_the_rules_is_rejected(choice: Any, why: str) -> None:
    manager = node(policy(choose=lambda *_args: choice), WEB)
    assert owned(manager) == {}
    said, held = refusal(manager)
    assert said.startswith(f"the CPU manager policy bad {why}")
    assert held


@pytest.mark.parametrize(
    ("requests", "why"),
    [
        ({"other": 1}, "the pod has no container {'other'}"),
        ({"web-main": 0}, "{'web-main': 0} are no numbers of CPUs: name 1 or more, or leave"),
        ({"web-main": 1.5}, "{'web-main': 1.5} are no numbers of CPUs"),
    ],
)
def test_a_pod_is_held_of_which_the_policy_wants_nonsense(
    requests: dict[str, Any], why: str
) -> None:
    manager = node(policy(requests=lambda *_args: requests), WEB)
    assert why in refusal(manager)[0]


def test_a_part_that_is_not_among_the_chosen_cpus_is_rejected() -> None:
    manager = node(
        policy(
            requests=lambda *_args: {WHOLE_POD: 1},
            choose=lambda *_args: Choice(CPUSet.of(1), parts={"web-main": CPUSet.of(3)}),
        ),
        WEB,
    )
    assert "has given a container CPUs 3 beside its choice" in refusal(manager)[0]


@pytest.mark.parametrize(
    ("narrowed", "why"),
    [
        (lambda *_args: None, "None is no ChoiceRequest"),
        (
            lambda _self, view, request: replace(request, available=view.topology.present),
            "CPUs 8-15 are not available",
        ),
        (lambda _self, _view, request: replace(request, count=3), "asks for something else"),
    ],
)
def test_a_request_is_only_narrowed(narrowed: Callable[..., Any], why: str) -> None:
    assert why in refusal(node(policy(narrowed=narrowed), WEB))[0]


@pytest.mark.parametrize("answer", ["nodes", ResourceHints(("node 0",))])  # type: ignore[arg-type]
def test_hints_of_another_type_hold_the_pod(answer: object) -> None:
    manager = node(policy(hints=lambda *_args: answer, asked_alignment=aligned), WEB)
    assert "has failed: TypeError: " in refusal(manager)[0]


def test_a_pod_is_held_of_which_the_policy_says_something_else_each_time() -> None:
    answers = itertools.cycle([{"web-main": 1}, {WHOLE_POD: 1}])
    manager = node(policy(requests=lambda *_args: next(answers)), WEB)
    assert "has requested CPUs for" in refusal(manager)[0]


def test_other_pods_are_served() -> None:
    def choose(self: LowestCPUs, view: Any, request: Any) -> Choice:
        if request.pod.name == "web":
            raise RuntimeError
        return LowestCPUs.choose(self, view, request)

    manager = node(policy(choose=choose), WEB, FIRST)
    assert owned(manager) == {"first-uid": "0"}


def stealing(_self: object, view: Any, _demand: object) -> CPUAssignment:
    return CPUAssignment(Placement.DEFAULT, default=view.topology.present)


@pytest.mark.parametrize(
    "methods",
    [
        {"place": raises},
        {"place": stealing},
        {"place": lambda *_args: None},
        {"place": lambda *_args: CPUAssignment(Placement.DEFAULT)},
        {"place": lambda *_args: CPUAssignment(Placement.KUBELET)},
        {"place": lambda _self, view, _demand: CPUAssignment(Placement.POLICY, view.free)},
        {"sharing": lambda *_args: None},
        {"extents": lambda _self, view: {DEFAULT: view.free, "more": view.topology.present}},
        {"extents": lambda _self, view: {DEFAULT: view.free, "more": None}},
        {"settled": property(lambda _self: {1: 2})},
        {"remembering": lambda *_args: None},
        {"asked_alignment": lambda *_args: "best"},
        {"sizes": lambda *_args: {"more": 1}},
        {"extents": raises},
        {"extents": lambda _self, view: {DEFAULT: view.topology.present}},
        {"extents": lambda _self, _view: {}},
        {"sharing": raises},
        {"home": raises},
        {"settled": property(raises)},
        {"remembering": raises},
        {"asked_alignment": raises},
    ],
    ids=lambda methods: next(iter(methods)),
)
def test_elsewhere_a_default_takes_the_place_of_the_answer(methods: dict[str, Any]) -> None:
    shares = web("shares", 500)
    wanting = {"requests": lambda _self, pod: {} if pod is shares else {pod.containers[0].name: 1}}
    manager = node(policy(**wanting, **methods), WEB, shares)
    manager.update_topology(MACHINE.topology())
    assert manager.measure(CPUUse({}, {})) is False
    assert owned(manager) == {"web-uid": "0"}
    assert cpus_of(manager, WEB, "web-main") == "0"
    assert cpus_of(manager, shares, "shares-main") == "1-7"


def test_a_bug_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def extents(*_args: object) -> Any:
        raise KeyError("told once")

    manager = node(policy(extents=extents), WEB)
    manager.observe(pods=(WEB, FIRST))
    assert caplog.text.count("told once") == 1


def test_a_placement_without_bugs_stays() -> None:
    def place(self: LowestCPUs, view: Any, demand: Any) -> CPUAssignment:
        return replace(LowestCPUs.place(self, view, demand), reason="by the policy")

    manager = node(policy(place=place), WEB)
    placed = manager.snapshot().assignment((WEB.cgroup_uid, ContainerID("web-main-id")))
    assert (placed.exclusive, placed.reason) == (CPUSet.of(0), "by the policy")


@pytest.mark.parametrize("available", [raises, lambda *_args: {0, 1}])
def test_no_cpu_is_available_where_the_policy_does_not_say_which(available: Any) -> None:
    manager = node(policy(available=available), WEB)
    assert owned(manager) == {}
    assert refusal(manager)[1]


def test_sizes_stay_where_the_policy_fails() -> None:
    assert node(policy(sizes=raises), WEB).measure(CPUUse({}, {})) is False


@pytest.mark.parametrize(
    ("of_pools", "why"),
    [(raises, "KeyError: 'socket'"), (lambda *_args: None, "a NoneType is no Bad")],
)
def test_a_policy_that_cannot_be_made_is_refused_and_changes_nothing(
    of_pools: Callable[..., Any], why: str
) -> None:
    manager = node(LowestCPUs, WEB)
    pools = replace(POOLS, cpu_manager=CPUManager("bad", installed=policy(of_pools=of_pools)))
    with pytest.raises(ConfigError, match=f"the policy bad has failed: {why}"):
        manager.reconfigure(pools, MACHINE.topology())
    assert owned(manager) == {"web-uid": "0"}


@pytest.mark.parametrize("available", [raises, lambda *_args: {0, 1}])
def test_a_command_names_the_policy_that_cannot_say_what_is_available(available: Any) -> None:
    manager = CPUManager("bad", installed=policy(available=available))
    with pytest.raises(ConfigError, match="the policy bad has failed: "):
        assignable(replace(POOLS, cpu_manager=manager), MACHINE.topology())


def test_the_sandbox_of_a_pod_has_the_cpus_that_its_policy_shares_with_it() -> None:
    def shared(_self: object, view: NodeView, _pod: Pod) -> CPUAssignment:
        return replace(view.default, default=CPUSet.of(5))

    assert sandbox(policy(requests=none, shared=shared)) == CPUSet.of(5)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(raises, id="raises"),
        pytest.param(lambda *_: "0", id="no assignment"),
        pytest.param(lambda *_: CPUAssignment(Placement.DEFAULT), id="no CPUs"),
        pytest.param(
            lambda *_: CPUAssignment(Placement.DEFAULT, default=CPUSet.of(8)), id="of a pool"
        ),
        pytest.param(
            lambda *_: CPUAssignment(Placement.POLICY, exclusive=CPUSet.of(5)), id="its own"
        ),
    ],
)
def test_a_wrong_answer_about_shared_cpus_shares_those_of_all(answer: Callable[..., Any]) -> None:
    assert sandbox(policy(requests=none, shared=answer)) == CPUSet.parse("0-7")


def none(*_args: object) -> dict[str, int]:
    return {}


def sandbox(kind: type[CPUManagerPolicy]) -> CPUSet:
    """Return the CPUs of the sandbox of a pod without CPUs of its own."""
    return node(kind, WEB).snapshot().assignment((WEB.cgroup_uid, ContainerID("sandbox"))).cpus


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        pytest.param({"one": "1-2", "two": "3"}, {"one": "1-2", "two": "3"}, id="apart"),
        pytest.param({"one": "1-2"}, {"one": "1-2", "two": "3-4"}, id="one shares the rest"),
        pytest.param({"one": "1-2", "two": "2-3"}, {"one": "0-7", "two": "0-7"}, id="both"),
    ],
)
def test_no_two_containers_own_a_cpu_of_a_bubble(
    parts: dict[str, str], kept: dict[str, str]
) -> None:
    both = builders.pod("web", builders.container("one"), builders.container("two"))
    owned_ = {name: CPUSet.parse(cpus) for name, cpus in parts.items()}
    bubble = Choice(CPUSet.parse("1-4"), parts=owned_, bubble=True)
    bad = policy(requests=lambda *_: {WHOLE_POD: 4}, choose=lambda *_: bubble)
    manager = node(bad, both)
    assert {name: cpus_of(manager, both, name) for name in parts | kept} == kept
