"""Laws of topology hints: the short ways give what trying everything gives, in any order."""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpu_manager import TopologyHint, TopologyPolicy
from cpupool.policies.hints import Merged, generate, merge

if TYPE_CHECKING:
    from random import Random

Offers = list[list[TopologyHint] | None]

NODES = range(5)
counts = st.dictionaries(st.sampled_from(NODES), st.integers(0, 6), min_size=1)
masks = st.frozensets(st.sampled_from(NODES), min_size=1)
hints = st.builds(TopologyHint, st.none() | masks, st.booleans())
offers: st.SearchStrategy[Offers] = st.lists(st.none() | st.lists(hints, max_size=6), max_size=4)
policies = st.sampled_from(TopologyPolicy)
rows = st.lists(st.integers(10, 13), min_size=len(NODES), max_size=len(NODES))
distances = st.fixed_dictionaries(dict.fromkeys(NODES, rows))


@given(st.integers(1, 20), counts, st.data())
def test_exactly_the_sets_that_suffice_are_offered(
    request: int, capacity: dict[int, int], data: st.DataObject
) -> None:
    available = {node: data.draw(st.integers(0, has)) for node, has in capacity.items()}
    required = data.draw(st.frozensets(st.sampled_from(sorted(capacity))))
    sockets = {node: {node // 2} for node in capacity} if data.draw(st.booleans()) else None

    offer = generate(request, capacity, available, required, sockets)

    subsets = [
        frozenset(nodes)
        for size in range(1, len(capacity) + 1)
        for nodes in combinations(sorted(capacity), size)
    ]
    narrowest = min(
        (len(nodes) for nodes in subsets if sum(capacity[node] for node in nodes) >= request),
        default=len(capacity),
    )
    expected = [
        nodes
        for nodes in subsets
        if required <= nodes and sum(available[node] for node in nodes) >= request
    ]
    assert offer.complete
    assert [hint.nodes for hint in offer.hints] == expected
    if sockets is None:
        assert [hint.preferred for hint in offer.hints] == [
            len(nodes) == narrowest for nodes in expected
        ]
    else:
        assert all(hint.preferred for hint in offer.hints if len(hint.nodes or ()) == narrowest)


@given(policies, offers, st.none() | distances)
def test_a_merge_is_the_best_of_all_combinations(
    policy: TopologyPolicy, offers: Offers, distances: dict[int, list[int]] | None
) -> None:
    assert merge(policy, NODES, offers, distances) == by_trying_all(policy, offers, distances)


@given(policies, offers, st.randoms(use_true_random=False))
def test_neither_the_order_of_resources_nor_that_of_hints_matters(
    policy: TopologyPolicy, offers: Offers, random: Random
) -> None:
    mixed = [hints if hints is None else random.sample(hints, len(hints)) for hints in offers]
    random.shuffle(mixed)

    assert merge(policy, NODES, mixed) == merge(policy, NODES, offers)


def by_trying_all(
    policy: TopologyPolicy, offers: Offers, distances: dict[int, list[int]] | None
) -> Merged:
    """Merge as the kubelet does: every combination in turn against the best so far."""
    if policy is TopologyPolicy.NONE:
        return Merged(TopologyHint(None, preferred=False), admit=True)
    single = policy is TopologyPolicy.SINGLE_NUMA_NODE
    listed = [hints or [TopologyHint(None, preferred=hints is None)] for hints in offers]
    if single:
        listed = [
            [hint for hint in hints if hint.preferred and len(hint.nodes or (0,)) == 1]
            for hints in listed
        ]
    demand = max(
        (
            min((len(hint.nodes) for hint in hints if hint.nodes is not None), default=0)
            for hints in listed
        ),
        default=0,
    )
    everything = frozenset(NODES)
    best: TopologyHint | None = None
    for combination in product(*listed):
        sets = [hint.nodes for hint in combination if hint.nodes is not None]
        agreed = all(nodes == sets[0] for nodes in sets)
        preferred = agreed and all(hint.preferred for hint in combination)
        candidate = TopologyHint(everything.intersection(*sets), preferred)
        if candidate.nodes and (
            best is None or better(candidate, best, demand, None if single else distances)
        ):
            best = candidate
    best = best or TopologyHint(everything, preferred=False)
    if single and best.nodes == everything:
        best = TopologyHint(None, best.preferred)
    return Merged(best, admit=best.preferred or policy is TopologyPolicy.BEST_EFFORT)


def better(
    one: TopologyHint, best: TopologyHint, demand: int, distances: dict[int, list[int]] | None
) -> bool:
    """Tell whether a candidate replaces the best so far."""
    if one.preferred != best.preferred:
        return one.preferred
    size, best_size = len(one.nodes or ()), len(best.nodes or ())
    if not one.preferred and best_size <= demand and size != best_size:
        return best_size < size <= demand
    return fitness(one, distances) < fitness(best, distances)


def fitness(
    hint: TopologyHint, distances: dict[int, list[int]] | None
) -> tuple[int, float, list[int]]:
    nodes = sorted(hint.nodes or ())
    far = [distances[one][other] for one in nodes for other in nodes] if distances else [0]
    # Of two sets the lower has the lower highest node that only one of them has.
    return len(nodes), sum(far) / len(far), nodes[::-1]
