"""Pods of a simulated node are resized in place."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import DYNAMIC, STATIC, CPUManager, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import Container
from cpupool.simulate import simulation, workload
from cpupool.simulate.workload import Event
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod
    from cpupool.simulate.simulation import SimulationResult

# Cores 0 to 7 with siblings 16 to 23 are NUMA node 0, the others node 1; 28 CPUs can be given.
TELCO = MACHINES["telco_2s_2n_16c32t"].topology()
POLICY = CPUManager(
    "static", CPUSet.parse("0,8,16,24"), topology_policy=TopologyPolicy.SINGLE_NUMA_NODE
)
POOLS = NodePools.of(cpu_manager=POLICY)
APART = "Resources cannot be allocated with Topology locality"
DYNAMIC_POOLS = NodePools.of(
    cpu_manager=replace(POLICY, policy="dynamic", topology_policy=TopologyPolicy.NONE)
)
SIZES = ((1, 6), (2, 1.5), (3, 6))
NO_EVENT = {
    "no containers": ('"resize": {}', 'resize is {}; write {"container": CPUs, ...}'),
    "no object": ('"resize": 4', 'resize is 4; write {"container": CPUs, ...}'),
    "another container": ('"resize": {"x": 4}', "ns/a has no container 'x'; use init, c, side"),
    "an init container": ('"resize": {"init": 4}', "init is an init container; resize an app"),
    "no cpu before": ('"resize": {"side": 4}', "side requests no cpu, so no resize can change it"),
    "no number": ('"resize": {"c": "4"}', "the cpu of c is '4'; write a number of CPUs"),
    "nothing": ('"resize": {"c": 0}', "the cpu of c is 0; write a number of CPUs above 0"),
    "a finer part": ('"resize": {"c": 0.0001}', "the cpu of c is 0.0001; write a number of CPUs"),
    "an end": ('"resize": {"c": 4}, "ends": true', "'resize' is no key of an event"),
    "more": ('"resize": {"c": 4}, "containers": []', "'containers' is no key of an event"),
}


def container(cpu: float, name: str = "c") -> Container:
    whole = int(cpu) if cpu == int(cpu) else 0
    return Container(name, request_milli=round(1000 * cpu), whole_cpus=whole)


class Trace:
    """Events, with the present pods."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._pods: dict[str, Pod] = {}

    def comes(self, at_s: float, name: str, *containers: Container | float) -> None:
        made = [container(one) if isinstance(one, int | float) else one for one in containers]
        pod = workload.pod_of(f"ns/{name}", made)
        self.events.append(workload.arrival(at_s, pod, {}, {}))
        self._pods[name] = self.events[-1].pod

    def resized(self, at_s: float, name: str, **cpus: float) -> None:
        milli = {container: round(1000 * cpu) for container, cpu in cpus.items()}
        self.events.append(workload.resizing(at_s, self._pods[name], milli))
        self._pods[name] = self.events[-1].pod

    def goes(self, at_s: float, name: str) -> None:
        self.events.append(Event(at_s, self._pods.pop(name), ends=True))

    def run(self, pools: NodePools = POOLS, policy: str = STATIC) -> SimulationResult:
        read = workload.read("trace.jsonl", workload.write(self.events))
        assert read == tuple(self.events)
        return simulation.compare(TELCO, pools, read, [policy])[policy]


@pytest.fixture
def trace() -> Trace:
    return Trace()


def ends(outcome: SimulationResult) -> list[tuple[float, str, str, str]]:
    """Give time, pod/container, outcome and reason of each resize."""
    return [(one.at_s, one.container[3:], one.outcome.value, one.why) for one in outcome.resizes]


def cpus(outcome: SimulationResult) -> dict[str, str]:
    """Give pod/container → its CPUs at the end."""
    return {one.container[3:]: str(one.cpus) for one in outcome.running}


def test_a_container_of_a_pod_with_cpu_of_its_own_is_resized_as_another_owner() -> None:
    named = [{"name": "db", "cpu": 4}, {"name": "logs"}]
    lines: list[dict[str, object]] = [
        {"at_s": 0, "pod": "ns/web", "cpu": 8, "containers": named},
        *({"at_s": at_s, "pod": "ns/web", "resize": {"db": cpu}} for at_s, cpu in SIZES),
    ]
    events = workload.read("trace.jsonl", "\n".join(map(json.dumps, lines)))
    assert workload.read("trace.jsonl", workload.write(events)) == events
    manager = replace(DYNAMIC_POOLS.cpu_manager, pod_level=True)

    outcome = simulation.compare(TELCO, NodePools.of(cpu_manager=manager), events, [DYNAMIC])

    none = "requests no whole number now"
    assert [(at_s, word, none in why) for at_s, _, word, why in ends(outcome[DYNAMIC])] == [
        (1, "served", False),
        (2, "refused", True),
        (3, "served", False),
    ]
    assert cpus(outcome[DYNAMIC]) == {"web/db": "1-3,17-19"}


@pytest.mark.parametrize("cpu", [4, 1, 1.5])
def test_an_owner_under_static_keeps_its_cpus_and_the_scheduler_counts_the_new_request(
    trace: Trace, cpu: float
) -> None:
    trace.comes(0, "p", 2)
    trace.resized(5, "p", c=cpu)
    trace.comes(6, "fits", 28 - cpu - 0.5)
    trace.comes(7, "late", 1)
    outcome = trace.run()
    assert ends(outcome) == [(5, "p/c", "ignored", "")]
    assert cpus(outcome)["p/c"] == "1,17"
    (refusal,) = outcome.refusals
    assert "ns/late: Unschedulable: cpu: 1 requested, 500m free of 28" in refusal.why
    assert outcome.summary.resizes_ignored == 1


@pytest.mark.parametrize(
    ("cpu", "why"),
    [
        (
            29,
            (
                "Infeasible: Node didn't have enough capacity: cpu, requested: 29000, capacity:"
                " 28000 (in milli-CPUs)"
            ),
        ),
        (
            20,
            (
                "Deferred: Node didn't have enough resource: cpu, requested: 20000, used: 9000,"
                " capacity: 28000 (in milli-CPUs)"
            ),
        ),
    ],
)
def test_a_resize_for_which_the_node_has_no_cpu_is_refused_and_counts_nothing(
    trace: Trace, cpu: int, why: str
) -> None:
    trace.comes(0, "p", 0.5)
    trace.comes(0, "q", 9)
    trace.resized(5, "p", c=cpu)
    trace.comes(6, "rest", 18.5)
    outcome = trace.run()
    assert ends(outcome) == [(5, "p/c", "refused", why)]
    assert outcome.refusals == ()
    (record,) = outcome.resizes
    assert (record.had_milli, record.requested_milli, record.owned) == (500, 1000 * cpu, 0)
    assert outcome.summary.resizes_refused == 1


def test_a_container_that_shares_and_then_requests_whole_cpus_gets_some_as_on_a_node(
    trace: Trace,
) -> None:
    trace.comes(0, "p", 1.5, container(1.5, "d"))
    trace.resized(5, "p", c=2)
    trace.resized(6, "p", d=2.5)
    outcome = trace.run()
    assert ends(outcome) == [(5, "p/c", "served", ""), (6, "p/d", "served", "")]
    assert cpus(outcome) == {"p/c": "1,17"}
    assert outcome.summary.resizes_served == 2
    assert outcome.summary.waited == 0


def test_a_container_that_shares_goes_on_if_there_are_no_cpus_of_its_own_for_it(
    trace: Trace,
) -> None:
    trace.comes(0, "a", 10)
    trace.comes(1, "b", 10)
    trace.comes(2, "p", 0.5)
    trace.resized(5, "p", c=6)
    trace.goes(6, "a")
    outcome = trace.run()
    assert ends(outcome) == [(5, "p/c", "refused", APART)]
    assert cpus(outcome) == {"b/c": "9-13,25-29"}
    assert outcome.summary.waiting_at_end == 0


def test_a_pod_that_is_held_can_request_less_and_starts(trace: Trace) -> None:
    trace.comes(0, "a", 10)
    trace.comes(1, "b", 10)
    trace.comes(2, "wide", 6)
    trace.resized(5, "wide", c=4)
    outcome = trace.run()
    assert ends(outcome) == [(5, "wide/c", "served", "")]
    assert len(CPUSet.parse(cpus(outcome)["wide/c"])) == 4
    (wide,) = [one for one in outcome.placements if one.container == "ns/wide/c"]
    assert (wide.waited_s, wide.requested, wide.held) == (3, 4, "")


def test_a_pod_that_the_node_refused_cannot_be_resized(trace: Trace) -> None:
    trace.comes(0, "big", 29)
    trace.resized(1, "big", c=2)
    assert ends(trace.run()) == []


def test_without_a_cpu_manager_the_kubelet_serves_every_resize(trace: Trace) -> None:
    trace.comes(0, "p", 2)
    trace.resized(1, "p", c=99)
    pools = NodePools.of(Pool.named("default", "0-7"))
    outcome = trace.run(pools, simulation.POOL)
    assert ends(outcome) == [(1, "p/c", "served", "")]


def test_a_container_of_a_burstable_pod_shares_after_a_resize() -> None:
    lines = (
        '{"at_s": 0, "pod": "ns/a", "qos": "Burstable", "containers": [{"name": "c", "cpu": 2}]}\n'
        '{"at_s": 1, "pod": "ns/a", "resize": {"c": 4}}\n'
    )
    arrival, resize = workload.read("trace.jsonl", lines)
    assert resize.pod.containers[0].request_milli == 4000
    assert [event.pod.containers[0].whole_cpus for event in (arrival, resize)] == [0, 0]


@pytest.mark.parametrize(("rest", "problem"), NO_EVENT.values(), ids=list(NO_EVENT))
def test_a_line_that_is_no_resize_is_named_with_what_to_do(rest: str, problem: str) -> None:
    containers = (
        '[{"name": "c", "cpu": 2}, {"name": "init", "kind": "init", "cpu": 1}, {"name": "side"}]'
    )
    lines = f'{{"at_s": 0, "pod": "ns/a", "containers": {containers}}}\n'
    lines += f'\n{{"at_s": 1, "pod": "ns/a", {rest}}}\n'
    with pytest.raises(ConfigError) as caught:
        workload.read("trace.jsonl", lines)
    (found,) = caught.value.problems
    assert str(found).startswith(f"trace.jsonl:3:1: {problem}")


def test_a_pod_that_is_not_there_cannot_be_resized() -> None:
    with pytest.raises(ConfigError, match=r"trace\.jsonl:1:1: ns/a is resized, but is not there"):
        workload.read("trace.jsonl", '{"at_s": 1, "pod": "ns/a", "resize": {"c": 4}}\n')


def test_random_pods_are_resized_when_asked_and_are_the_same_pods() -> None:
    plain = list(workload.made_up(TELCO, POOLS, 60, seed=2, load=0.9))
    assert not any(event.resize for event in plain)
    events = tuple(workload.made_up(TELCO, POOLS, 60, seed=2, load=0.9, resizes=1))
    resized = {event.pod.uid: event for event in events if event.resize}
    arrived = {event.pod.uid: event for event in events if not (event.resize or event.ends)}
    # Those whose time is not over with the last arrival are missing.
    assert 30 < len(resized) < 60
    for uid, event in resized.items():
        before, after = arrived[uid].pod.containers[0], event.pod.containers[0]
        assert before.whole_cpus != after.whole_cpus > 0
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    assert workload.read("trace.jsonl", workload.write(events)) == events
    some = list(workload.made_up(TELCO, POOLS, 200, seed=2, load=0.9, resizes=0.3))
    assert 20 < sum(bool(event.resize) for event in some) < 80


class TestUnderDynamic:
    def test_a_container_grows_at_once(self, trace: Trace) -> None:
        trace.comes(0, "p", 2)
        trace.resized(5, "p", c=4)
        outcome = trace.run(DYNAMIC_POOLS, DYNAMIC)
        assert ends(outcome) == [(5, "p/c", "served", "")]
        assert cpus(outcome) == {"p/c": "1-2,17-18"}
        (placed,) = outcome.placements
        assert (placed.requested, placed.at_s, placed.waited_s) == (4, 0, 0)
        (why,) = (step.why for step in placed.steps if step.rule == "resize")
        assert why == "from cpu 2 to 4: it got CPUs 2,18"
        assert [moment.utilisation for moment in outcome.series] == [2 / 28, 4 / 28]

    def test_a_refused_resize_is_among_the_reasons_until_the_pod_ends(self, trace: Trace) -> None:
        trace.comes(0, "p", 2)
        trace.resized(1, "p", c=1)
        trace.comes(2, "other", 2)
        trace.resized(3, "p", c=4)
        outcome = trace.run(DYNAMIC_POOLS, DYNAMIC)
        placed, other = outcome.placements
        refused, served = [step for step in placed.steps if step.rule == "resize"]
        (why,) = [resize.why for resize in outcome.resizes if resize.why]
        assert (refused.why, str(refused.left)) == (f"refused at 1 s: {why}", "1,17")
        assert served.why.startswith("from cpu 2 to 4")
        assert [step.rule for step in placed.steps][-1] == "cpuManager"
        assert not [step for step in other.steps if step.rule == "resize"]

    def test_the_cpus_of_a_shrink_are_free_when_the_notice_ends(self, trace: Trace) -> None:
        trace.comes(0, "a", 4)
        trace.resized(0.5, "a", c=14)
        trace.comes(1, "b", 14)
        trace.resized(2, "a", c=4)
        trace.comes(3, "waits", 8)
        trace.comes(30, "later", 2)
        outcome = trace.run(DYNAMIC_POOLS, DYNAMIC)
        assert {end for _, _, end, _ in ends(outcome)} == {"served"}
        assert cpus(outcome)["a/c"] == "1-2,17-18"
        waited = {one.container: one.waited_s for one in outcome.placements if one.waited_s}
        assert waited == {"ns/waits/c": 9}
        times = {moment.at_s: round(moment.utilisation * 28) for moment in outcome.series}
        assert times == {0: 4, 0.5: 14, 1: 28, 2: 28, 3: 28, 12: 26, 30: 28}

    def test_a_further_shrink_starts_the_notice_anew_and_a_grow_ends_it(self, trace: Trace) -> None:
        for name in "ab":
            trace.comes(0, name, 2)
        for at_s, cpu in ((0, 8), (1, 6)):
            trace.resized(at_s, "a", c=cpu)
            trace.resized(at_s, "b", c=cpu)
        trace.resized(5, "a", c=5)
        trace.resized(6, "b", c=8)
        trace.comes(11, "at-the-first-end", 0.5)
        trace.comes(40, "last", 0.5)
        outcome = trace.run(DYNAMIC_POOLS, DYNAMIC)
        times = {moment.at_s: round(moment.utilisation * 28) for moment in outcome.series}
        assert times == {0: 16, 1: 16, 5: 16, 6: 16, 11: 16, 15: 13, 40: 13}

    def test_a_pod_that_ends_in_its_notice_leaves_nothing(self, trace: Trace) -> None:
        trace.comes(0, "a", 2)
        trace.resized(0, "a", c=8)
        trace.resized(1, "a", c=6)
        trace.goes(2, "a")
        trace.comes(40, "last", 0.5)
        outcome = trace.run(DYNAMIC_POOLS, DYNAMIC)
        assert [moment.at_s for moment in outcome.series] == [0, 1, 2, 40]
        assert outcome.series[-1].utilisation == 0

    def test_decreases_come_first_and_the_first_refusal_ends_the_resize(self, trace: Trace) -> None:
        trace.comes(0, "p", container(2, "up"), container(4, "down"), container(2, "most"))
        trace.resized(0, "p", most=4)
        trace.resized(1, "p", up=3, down=1, most=2)
        outcome = trace.run(DYNAMIC_POOLS, DYNAMIC)
        why = "it requests cpu 1, and keeps the CPUs"
        outcome = replace(outcome, resizes=outcome.resizes[1:])
        assert [(name, end) for _, name, end, _ in ends(outcome)] == [
            ("p/most", "served"),
            ("p/down", "refused"),
            ("p/up", "refused"),
        ]
        assert ends(outcome)[1][3].startswith(why)
        assert ends(outcome)[2][3] == "container down is resized first"
        assert {name: len(CPUSet.parse(text)) for name, text in cpus(outcome).items()} == {
            "p/up": 2,
            "p/down": 4,
            "p/most": 2,
        }
