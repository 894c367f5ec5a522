from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, PoolPolicy
from cpupool.core.pools import MixedCPUs, NodePools, Pool, PoolKind
from cpupool.core.workloads import Container, ContainerKind
from cpupool.policies.built_in import CHOOSING
from cpupool.simulate import simulation, workload
from cpupool.simulate.workload import Event
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.simulate.simulation import SimulationResult

# Cores 0 to 7 with siblings 16 to 23 are NUMA node 0 and one L3 cache, the others node 1.
TELCO = MACHINES["telco_2s_2n_16c32t"].topology()
POOLS = NodePools.of(
    Pool.named("exclusive_a", "2-7,10-15"),
    Pool.named("exclusive_m", "9", multi_threaded=True),
    Pool.named("shared", "1,17"),
    Pool.named("default", "0,8"),
)
INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR


def container(name: str = "c", kind: ContainerKind = ContainerKind.APP, **asked: int) -> Container:
    return Container(name, kind, builders.asking(asked))


def comes(name: str, *containers: Container, at_s: float = 0) -> Event:
    return Event(at_s, workload.pod_of(f"ns/{name}", containers))


def goes(name: str, at_s: float) -> Event:
    return Event(at_s, workload.pod_of(f"ns/{name}", ()), ends=True)


def simulate(
    *events: Event,
    pools: NodePools = POOLS,
    policy: str = simulation.POOL,
    manager: TopologyPolicy = TopologyPolicy.NONE,
) -> SimulationResult:
    return simulation.compare(TELCO, pools, events, [policy], manager=manager)[policy]


def cpus(outcome: SimulationResult) -> dict[str, str]:
    """Give container/pool → its CPUs at the end, without the namespace."""
    return {f"{one.container[3:]}/{one.pool}": str(one.cpus) for one in outcome.running}


def test_each_pool_gives_what_it_promises() -> None:
    outcome = simulate(
        comes("p", container(exclusive_a=2, shared=300), container("d", exclusive_m=1))
    )

    assert cpus(outcome) == {
        "p/c/exclusive_a": "2-3",
        "p/c/shared": "1,17",
        "p/d/exclusive_m": "9,25",
    }
    found = {one.pool: (one.requested, one.nodes, one.caches) for one in outcome.placements}
    assert found == {
        "exclusive_a": (2, (0,), (0,)),
        "shared": (300, (0,), (0,)),
        "exclusive_m": (1, (1,), (1,)),
    }


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"exclusive_a": 11}, "ns/big: Unschedulable: exclusive_a: 11 requested, 10 free of 12"),
        ({"shared": 1600}, "ns/big: Unschedulable: shared: 1600 requested, 1500 free of 2000"),
        (
            {"exclusive_x": 1},
            (
                "ns/big: Unschedulable: exclusive_x: 1 requested, but this node has"
                " exclusive_a, exclusive_m, shared"
            ),
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(asked: dict[str, int], why: str) -> None:
    outcome = simulate(
        comes("first", container(exclusive_a=2, shared=500)),
        comes("big", Container("c", requests=builders.asking(asked)), at_s=1),
        comes("last", container(exclusive_a=10), at_s=2),
    )

    assert [(one.at_s, one.why) for one in outcome.refusals] == [(1, why)]
    (refused,) = [one for one in outcome.placements if one.refused]
    assert (refused.container, refused.refused, refused.cpus) == ("ns/big/c", why, CPUSet())
    assert (outcome.summary.admitted, outcome.summary.refused) == (2, 1)


def test_app_containers_use_the_cpus_of_init_containers_again_and_not_those_of_sidecars() -> None:
    outcome = simulate(
        comes(
            "p",
            container("init", INIT, exclusive_a=4),
            container("side", SIDECAR, exclusive_a=1),
            container("main", exclusive_a=3),
        ),
        comes("q", container(exclusive_a=8)),
    )

    found = cpus(outcome)
    init, side, main = (
        CPUSet.parse(found[f"p/{name}/exclusive_a"]) for name in ("init", "side", "main")
    )
    assert side | main == init
    assert side.isdisjoint(main)
    assert not outcome.refusals


def test_what_a_pod_held_is_free_when_it_ends() -> None:
    events = [comes("p", container(exclusive_a=12)), goes("p", 5), goes("p", 5)]
    outcome = simulate(*events, comes("q", container(exclusive_a=12), at_s=6))

    assert cpus(outcome) == {"q/c/exclusive_a": "2-7,10-15"}
    assert [moment.utilisation for moment in outcome.series] == [12 / 13, 0, 12 / 13]


def test_the_series_has_one_moment_for_each_time_and_means_are_weighed_by_time() -> None:
    outcome = simulate(
        comes("p", container(exclusive_a=6)),
        comes("q", container(exclusive_a=7)),
        goes("p", 30),
        comes("r", container(exclusive_a=1), at_s=40),
        pools=NodePools.of(Pool.named("exclusive_a", "2-7,10-15")),
    )

    assert [moment.at_s for moment in outcome.series] == [0, 30, 40]
    assert [moment.utilisation for moment in outcome.series] == [0.5, 0, 1 / 12]
    assert outcome.summary.utilisation == pytest.approx((30 * 0.5 + 10 * 0) / 40)


def test_alignment_counts_only_containers_that_could_lie_together() -> None:
    outcome = simulate(
        # Node 0 and 1 have six CPUs of the pool each.
        comes("five", container(exclusive_a=5)),
        comes("two", container(exclusive_a=2)),
        comes("five-more", container(exclusive_a=5)),
        policy=simulation.FIRST_FIT,
    )

    assert [moment.on_one_node for moment in outcome.series] == [pytest.approx(2 / 3)]
    assert outcome.summary.on_one_node == pytest.approx(2 / 3)
    assert simulate(comes("seven", container(exclusive_a=7))).summary.on_one_node is None


def test_free_cpus_are_measured_by_how_they_lie() -> None:
    events = [comes(name, container(exclusive_a=3)) for name in "abcd"]
    outcome = simulate(
        *events,
        goes("a", 1),
        goes("d", 2),
        pools=NodePools.of(Pool.named("exclusive_a", "2-7,10-15")),
    )

    assert outcome.summary.largest_block_at_end == 3
    assert outcome.summary.fragmentation_at_end == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("manager", "admitted", "on_one_node"),
    [
        (TopologyPolicy.NONE, 3, 2 / 3),
        (TopologyPolicy.BEST_EFFORT, 3, 2 / 3),
        (TopologyPolicy.RESTRICTED, 2, 1),
        (TopologyPolicy.SINGLE_NUMA_NODE, 2, 1),
    ],
)
def test_the_topology_manager_does_as_its_policy_says(
    manager: TopologyPolicy, admitted: int, on_one_node: float
) -> None:
    outcome = simulate(
        *(comes(name, container(exclusive_a=4)) for name in "abc"),
        policy=simulation.POOL,
        manager=manager,
    )

    assert outcome.summary.admitted == admitted
    assert outcome.summary.on_one_node == pytest.approx(on_one_node)
    for refusal in outcome.refusals:
        assert "TopologyAffinityError" in refusal.why
        assert "have 4 of exclusive_a" in refusal.why


def test_the_topology_manager_brings_two_pools_to_one_node() -> None:
    outcome = simulate(
        comes("p", container(exclusive_a=2, exclusive_m=1)),
        policy=simulation.FIRST_FIT,
        manager=TopologyPolicy.BEST_EFFORT,
    )

    assert cpus(outcome) == {"p/c/exclusive_a": "10-11", "p/c/exclusive_m": "9,25"}
    steps = outcome.placements[0].steps
    assert (steps[0].rule, str(steps[0].left)) == ("topologyManagerPolicy", "10-15")


def test_a_pool_of_whole_cores_refuses_what_is_none() -> None:
    policy = PoolPolicy(bind=CPUBindPolicy.FULL_PHYSICAL_CORES)
    pools = NodePools.of(
        Pool("exclusive_a", PoolKind.EXCLUSIVE, CPUSet.parse("2-7,18-23"), policy=policy)
    )
    events = [comes("odd", container(exclusive_a=3)), comes("even", container(exclusive_a=4))]

    ours = simulate(*events, pools=pools)
    (refusal,) = ours.refusals
    assert refusal.why == (
        "ns/odd: UnexpectedAdmissionError: c: exclusive_a: 3 CPUs requested of cores with 2;"
        " request a multiple of 2"
    )
    assert cpus(ours) == {"even/c/exclusive_a": "2-3,18-19"}
    naive = simulate(*events, pools=pools, policy=simulation.FIRST_FIT)
    assert "parts of cores" in naive.refusals[1].why


def test_containers_keep_away_from_each_other_though_they_be_of_one_pod() -> None:
    policy = PoolPolicy(exclusive=ExclusivePolicy.NUMA_NODE)
    pools = NodePools.of(
        Pool("exclusive_a", PoolKind.EXCLUSIVE, CPUSet.parse("2-7,10-15"), policy=policy)
    )

    outcome = simulate(
        comes("p", container("one", exclusive_a=1), container("two", exclusive_a=1)), pools=pools
    )

    # Which pod asks, a device plugin is not told.
    assert [one.nodes for one in outcome.running] == [(0,), (1,)]


def test_every_choice_says_how_it_was_made() -> None:
    choices = {
        policy: simulate(comes("p", container(exclusive_a=2)), policy=policy).placements[0]
        for policy in simulation.POLICIES
        if policy not in CHOOSING
    }

    assert all(one.steps for one in choices.values())
    assert all(one.steps[-1].left == one.cpus for one in choices.values())
    unasked = simulate(
        comes("p", container(exclusive_a=6)), manager=TopologyPolicy.BEST_EFFORT
    ).placements[0]
    assert [step.rule for step in unasked.steps] == ["topologyManagerPolicy", "kubelet"]


def test_a_policy_that_a_pool_cannot_have_is_refused_before_anything_runs() -> None:
    policy = PoolPolicy(bind=CPUBindPolicy.SPREAD_ACROSS_CORES)
    pools = NodePools.of(
        Pool("exclusive_a", PoolKind.EXCLUSIVE, CPUSet.parse("2-7,18-23"), policy=policy)
    )

    with pytest.raises(ConfigError, match="numaPolicy"):
        simulate(comes("p", container(exclusive_a=1)), pools=pools, policy="distributed")


ARRIVAL = '{"at_s": 1, "pod": "ns/a", "containers": [{"name": "c", "requests": {"x": 1}}]}'


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("x", "this is no JSON: Expecting value; write one object per line"),
        ("[" * 100_000, "this cannot be read: "),
        (f'{{"at_s": {"9" * 5000}}}', "this cannot be read: "),
        ("3", "this is 3; write one object per line"),
        ('{"pod": "ns/b", "containers": [{"name": "c"}]}', "at_s is missing; write the seconds"),
        ('{"at_s": true, "pod": "ns/b"}', "at_s is True; write the seconds"),
        ('{"at_s": NaN, "pod": "ns/b"}', "this cannot be read: NaN is no value of JSON"),
        ('{"at_s": 0.5, "pod": "ns/b"}', "at_s is 0.5, after 1; let no time be before the last"),
        (f'{{"at_s": {"9" * 400}, "pod": "ns/b"}}', "at_s is 999999"),
        ('{"at_s": 2, "pod": "b"}', "pod is 'b'; write namespace/name"),
        ('{"at_s": 2, "pod": "ns/b/c"}', "pod is 'ns/b/c'; write namespace/name"),
        ('{"at_s": 2, "pod": "ns/b"}', "containers is missing; list at least one"),
        ('{"at_s": 2, "pod": "ns/b", "containers": []}', "containers is []; list at least one"),
        ('{"at_s": 2, "pod": "ns/b", "containers": [3]}', "a container is 3; write an object"),
        ('{"at_s": 2, "pod": "ns/b", "until": 3}', "'until' is no key of an event; use only at_s"),
        (
            '{"at_s": 2, "pod": "ns/b", "containers": [{"nme": "c"}]}',
            "'nme' is no key of a container; did you mean name?",
        ),
        *(
            (
                f'{{"at_s": 2, "pod": "ns/b", "containers": [{{"name": "c", "cpu": {cpu}}}]}}',
                f"the cpu of c is {shown}; write a number of CPUs",
            )
            for cpu, shown in (
                ('"2"', "'2'"),
                ("true", "True"),
                ("-1", "-1"),
                ("0.0005", "0.0005"),
                ("1e10", "10000000000.0"),
            )
        ),
        (
            '{"at_s": 2, "pod": "ns/b", "containers": [{"name": "c", "cpu": NaN}]}',
            "this cannot be read: NaN is no value of JSON; write one object per line",
        ),
        (
            '{"at_s": 2, "pod": "ns/b", "qos": "Best", "containers": [{"name": "c"}]}',
            "qos is 'Best'; write Guaranteed or Burstable, or leave it out",
        ),
        (
            '{"at_s": 2, "pod": "ns/b", "labels": "LSR", "containers": [{"name": "c"}]}',
            "labels is 'LSR'; write {",
        ),
        (
            '{"at_s": 2, "pod": "n/b", "labels": {"qosClass":"LSR"}, "containers": [{"name":"c"}]}',
            "'qosClass' is no key of labels; use only koordinator.sh/qosClass, koordinator.sh/prio",
        ),
        (
            '{"at_s":2,"pod":"n/b","containers":[{"name":"c"}],"annotations":{"cpus-per-container":1}}',
            "cpus-per-container in annotations is 1; write a text, in quotes",
        ),
        *(
            (
                f'{{"at_s":2,"pod":"n/b","containers":[{{"name":"c"}}],"annotations":{{{said}}}}}',
                problem,
            )
            for said, problem in (
                (
                    '"nokia.k8s.io/cpu-moves": "any"',
                    "'nokia.k8s.io/cpu-moves' is no key of annotations; did you mean cpu-moves?",
                ),
                ('"cpu-moves": "Any"', "cpu-moves in annotations is 'Any'; did you mean any?"),
                ('"cpu-moves": "x"', "cpu-moves in annotations is 'x'; use never or same-l3 or"),
                ('"cpu-notice-seconds": "5s"', "cpu-notice-seconds in annotations is '5s'; write"),
                ('"cpu-notice-seconds": "3601"', "cpu-notice-seconds in annotations is '3601'; w"),
            )
        ),
        (
            '{"at_s": 2, "pod": "ns/b", "containers": [{"name": 1}]}',
            "a container's name is 1; write a name",
        ),
        (
            '{"at_s": 2, "pod": "ns/b", "containers": [{"name": "c"}, {"name": "c"}]}',
            "there are two containers c; rename one",
        ),
        (
            '{"at_s": 2, "pod": "ns/b", "containers": [{"name": "c", "kind": "ini"}]}',
            "the kind of c is 'ini'; use one of app, init, sidecar",
        ),
        (
            '{"at_s": 2, "pod": "ns/b", "containers": [{"name": "c", "requests": []}]}',
            "the requests of c are []; write",
        ),
        (
            '{"at_s": 2, "pod": "ns/b", "containers": [{"name": "c", "requests": {"x": 0}}]}',
            "c requests 0 of x; write a whole number",
        ),
        (
            '{"at_s": 2, "pod": "ns/b", "containers": [{"name": "c", "requests": {"x": 1e9}}]}',
            "c requests 1000000000.0 of x; write a whole number",
        ),
        (
            '{"at_s": 2, "pod": "n/b", "containers": [{"name":"c", "requests":{"x":1000000001}}]}',
            "c requests 1000000001 of x; write a whole number up to 1,000,000,000",
        ),
        (
            '{"at_s": 2, "pod": "ns/b", "containers": [{"name": "c", "requests": {"a.b/x": 1}}]}',
            "c requests of 'a.b/x', which is no pool's name; write it as the pool file does",
        ),
        (ARRIVAL, "ns/a comes, but is there; end it before, or rename one"),
        ('{"at_s": 2, "pod": "ns/b", "ends": true}', "ns/b ends, but is not there; let it come"),
        ('{"at_s": 2, "pod": "ns/a", "ends": 1}', "ends is 1; write true, or leave it out"),
    ],
)
def test_a_line_that_is_no_event_is_named_with_what_to_do(line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        workload.read("trace.jsonl", f"{ARRIVAL}\n\n{line}\n")

    (found,) = caught.value.problems
    assert str(found).startswith(f"trace.jsonl:3:1: {problem}")


def test_what_is_no_json_is_found_in_its_column() -> None:
    with pytest.raises(ConfigError) as caught:
        workload.read("trace.jsonl", '{"at_s": 1, "pod": ns/a}')
    assert str(caught.value).startswith("trace.jsonl:1:20: this is no JSON: Expecting value;")


def test_only_the_first_problems_of_a_trace_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        workload.read("trace.jsonl", "x\n" * 1000)
    assert len(caught.value.problems) == 10
    with pytest.raises(ConfigError, match=r"trace.jsonl: there is no event in it; name"):
        workload.read("trace.jsonl", "\n")


def test_a_trace_keeps_the_kinds_and_starts_app_containers_last() -> None:
    line = {
        "at_s": 0,
        "pod": "ns/a",
        "containers": [
            {"name": "main", "requests": {"exclusive_a": 2}},
            {"name": "first", "kind": "init", "requests": {"exclusive_a": 1}},
            {"name": "side", "kind": "sidecar", "requests": {"shared": 100}},
        ],
    }

    events = workload.read("trace.jsonl", json.dumps(line))

    assert [(one.name, one.kind) for one in events[0].pod.containers] == [
        ("first", INIT),
        ("side", SIDECAR),
        ("main", ContainerKind.APP),
    ]
    assert workload.read("again.jsonl", workload.write(events)) == events


@pytest.mark.parametrize("qos", ["Guaranteed", "Burstable"])
def test_a_trace_keeps_native_requests_and_only_guaranteed_pods_own_whole_cpus(qos: str) -> None:
    containers = [{"name": str(cpu), "cpu": cpu} for cpu in (0, 2, 0.25, 1.001)]
    line = {"at_s": 0, "pod": "ns/a", "qos": qos, "containers": containers}

    events = workload.read("trace.jsonl", json.dumps(line))

    asked = [(one.request_milli, one.whole_cpus) for one in events[0].pod.containers]
    own = 2 if qos == "Guaranteed" else 0
    assert asked == [(0, 0), (2000, own), (250, 0), (1001, 0)]
    assert workload.read("again.jsonl", workload.write(events)) == events


def test_a_trace_keeps_limits_beside_requests_and_equal_ones_count_in_any_pod() -> None:
    asked = ((2, 2), (2, 3), (1.5, 1.5), (2, None))
    containers = [
        {"name": str(number), "cpu": cpu} | ({"limit": limit} if limit else {})
        for number, (cpu, limit) in enumerate(asked)
    ]
    line = {"at_s": 0, "pod": "ns/a", "qos": "Burstable", "containers": containers}
    resize = {"at_s": 1, "pod": "ns/a", "resize": {"0": 3, "1": 4, "3": 1}}

    events = workload.read("trace.jsonl", f"{json.dumps(line)}\n{json.dumps(resize)}\n")

    before, after = (
        [(one.whole_cpus, one.equal_cpus) for one in event.pod.containers] for event in events
    )
    assert before == [(0, 2), (0, 0), (0, 0), (0, 0)]
    # The limit of a container follows its request.
    assert after == [(0, 3), (0, 4), (0, 0), (0, 0)]
    assert workload.read("again.jsonl", workload.write(events)) == events


@pytest.mark.parametrize(("qos", "limit"), [("Guaranteed", 3), ("Guaranteed", 1), ("Burstable", 1)])
def test_a_limit_that_no_such_pod_has_is_refused(qos: str, limit: int) -> None:
    containers = [{"name": "c", "cpu": 2, "limit": limit}]
    line = {"at_s": 0, "pod": "ns/a", "qos": qos, "containers": containers}
    with pytest.raises(ConfigError, match=f"the limit of c is {limit}, and its cpu 2"):
        workload.read("trace.jsonl", json.dumps(line))


def test_random_pods_ask_for_what_pools_can_give_and_load_them_as_asked() -> None:
    policy = PoolPolicy(bind=CPUBindPolicy.FULL_PHYSICAL_CORES)
    pools = NodePools.of(
        Pool.named("exclusive_a", "1-7"),
        Pool("exclusive_whole", PoolKind.EXCLUSIVE, CPUSet.parse("8-15,24-31"), policy=policy),
        Pool.named("shared", "0"),
    )

    events = list(workload.made_up(TELCO, pools, 4000, seed=3, load=0.5))

    sizes: dict[str, set[int]] = {}
    for event in events:
        ((pool, amount),) = event.pod.containers[0].requests.items()
        sizes.setdefault(pool, set()).add(amount)
    assert sizes == {
        "exclusive_a": {1, 2},
        "exclusive_whole": {2, 4, 8},
        "shared": {100, 200, 400},
    }
    assert sum(not event.ends for event in events) == 4000
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    used = simulation.compare(TELCO, pools, events, [simulation.POOL])[simulation.POOL].summary
    assert used.utilisation == pytest.approx(0.5, abs=0.1)


MIXED = replace(POOLS, mixed=MixedCPUs("shared", 2))


def test_so_many_containers_have_shared_cpus_beside_their_own_as_there_are_units() -> None:
    asking = builders.container("c", shared_cpus=True, exclusive_a=1)
    pods = [comes(name, asking) for name in ("first", "second", "third")]
    for policy in ("pool", "distributed"):
        outcome = simulate(*pods, pools=MIXED, policy=policy)
        assert [one.why for one in outcome.refusals] == [
            "ns/third: Unschedulable: enable-shared-cpus: 1 requested, 0 free of 2"
        ]
        assert cpus(outcome)["second/c/enable-shared-cpus"] == "1,17"


def test_random_pods_do_not_ask_for_units() -> None:
    many = replace(POOLS, mixed=MixedCPUs("shared", 5000))
    events = workload.made_up(TELCO, many, 50, seed=1, load=0.5)
    asked = {pool for event in events for one in event.pod.containers for pool in one.requests}
    assert asked == {"exclusive_a", "exclusive_m", "shared"}


def test_no_random_pods_without_a_pool_to_ask() -> None:
    with pytest.raises(
        ConfigError, match="neither a pool nor a CPU manager policy has CPUs to give"
    ):
        list(workload.made_up(TELCO, NodePools.of(Pool.named("default", "0")), 1, seed=1, load=1))
