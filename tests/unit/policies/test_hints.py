from __future__ import annotations

from itertools import combinations

import pytest

from cpupool.core.cpu_manager import TopologyHint, TopologyPolicy
from cpupool.policies.hints import (
    Merged,
    ResourceHints,
    generate,
    merge,
    of_devices,
)

BEST_EFFORT = TopologyPolicy.BEST_EFFORT


def good(*nodes: int) -> TopologyHint:
    return TopologyHint(frozenset(nodes), preferred=True)


def bad(*nodes: int) -> TopologyHint:
    return TopologyHint(frozenset(nodes), preferred=False)


ANY = TopologyHint(None, preferred=True)
NOTHING = TopologyHint(None, preferred=False)
TWO = {0: 8, 1: 8}
FOUR = dict.fromkeys(range(4), 8)
MANY = dict.fromkeys(range(64), 8)


@pytest.mark.parametrize(
    ("request_", "available", "hints"),
    [
        pytest.param(4, TWO, [good(0), good(1), bad(0, 1)], id="one node is better than two"),
        pytest.param(8, TWO, [good(0), good(1), bad(0, 1)], id="a whole node is one node"),
        pytest.param(12, TWO, [good(0, 1)], id="two where one is too small even when idle"),
        pytest.param(4, {0: 2, 1: 8}, [good(1), bad(0, 1)], id="not where too few are free"),
        pytest.param(4, {0: 2, 1: 3}, [bad(0, 1)], id="two are no good where one would do idle"),
        pytest.param(4, {1: 4}, [good(1), bad(0, 1)], id="a node with nothing free may be missing"),
        pytest.param(4, {0: 1, 1: 2}, [], id="nothing where too few are free anywhere"),
        pytest.param(20, TWO, [], id="nothing where the machine is too small"),
    ],
)
def test_the_narrowest_sets_of_nodes_are_preferred(
    request_: int, available: dict[int, int], hints: list[TopologyHint]
) -> None:
    assert generate(request_, TWO, available) == ResourceHints(tuple(hints))


def test_hints_come_by_size_and_then_in_lexical_order() -> None:
    offer = generate(9, FOUR, FOUR)

    assert offer.hints[:6] == tuple(good(*pair) for pair in combinations(range(4), 2))
    assert offer.hints[6:10] == tuple(bad(*three) for three in combinations(range(4), 3))
    assert offer.hints[10:] == (bad(0, 1, 2, 3),)


def test_every_hint_covers_what_the_pod_has_already() -> None:
    offer = generate(4, TWO, {0: 8, 1: 4}, required=[1])

    assert offer.hints == (good(1), bad(0, 1))


def test_the_nodes_of_one_socket_are_as_good_as_one_node_by_an_option() -> None:
    sockets = {0: [0], 1: [0], 2: [1], 3: [1]}
    offer = generate(4, FOUR, FOUR, sockets=sockets)

    preferred = [sorted(hint.nodes or ()) for hint in offer.hints if hint.preferred]
    assert preferred == [[0], [1], [2], [3], [0, 1], [2, 3]]


def test_where_sockets_are_smaller_than_nodes_no_socket_is_a_unit() -> None:
    offer = generate(4, TWO, TWO, sockets={0: [0, 1], 1: [1, 2]})

    assert offer.hints == (good(0), good(1), bad(0, 1))


def test_node_ids_may_be_any_numbers() -> None:
    # A kernel with gaps in its node ids counts beyond 63; CPUs of no node are on node -1.
    offer = generate(12, {-1: 8, 70: 8}, {-1: 8, 70: 8})
    merged = merge(BEST_EFFORT, [-1, 70], [offer.hints])

    assert offer.hints == (good(-1, 70),)
    assert merged.hint == good(-1, 70)


def test_nine_nodes_are_listed_to_the_last_subset() -> None:
    nine = dict.fromkeys(range(9), 8)

    offer = generate(1, nine, nine)

    assert offer.complete
    assert len(offer.hints) == 2**9 - 1


def test_of_many_nodes_the_narrow_sets_are_listed_and_the_widest() -> None:
    offer = generate(4, MANY, MANY)

    assert not offer.complete
    assert len(offer.hints) <= 2**9 - 1
    assert offer.hints[:64] == tuple(good(node) for node in range(64))
    assert offer.hints[64] == bad(0, 1)
    assert offer.hints[-1] == bad(*range(64))


def test_of_many_nodes_the_few_that_suffice_are_found() -> None:
    # 4 CPUs free on node 20, 40 and 60: of 41664 sets of three nodes only one will do.
    offer = generate(12, MANY, {20: 4, 40: 4, 60: 4})

    assert offer.hints[0] == bad(20, 40, 60)


@pytest.mark.parametrize(
    ("offers", "merged"),
    [
        pytest.param([[good(0), good(1), bad(0, 1)], [good(1)]], good(1), id="what all prefer"),
        pytest.param([[good(0), good(1)], [good(0), good(1)]], good(0), id="the lowest of those"),
        pytest.param([[good(0, 1), good(2)], [good(0, 1), good(2)]], good(2), id="the narrowest"),
        pytest.param([[good(2)], None], good(2), id="not caring is no preference"),
        pytest.param([[good(2)], [ANY, bad(1)]], good(2), id="a hint without nodes takes any"),
        pytest.param([None, None], good(0, 1, 2), id="all nodes where nobody cares"),
        pytest.param([], good(0, 1, 2), id="all nodes where nobody asks"),
        pytest.param([[good(1)], [bad(1), bad(0, 1)]], bad(1), id="what one only puts up with"),
        pytest.param(
            [[good(0, 1)], [good(1, 2)]], bad(1), id="what two different preferences share"
        ),
        pytest.param([[good(0)], [good(1)]], bad(0, 1, 2), id="all nodes where nothing is shared"),
        pytest.param([[good(1)], []], bad(1), id="what cannot be served spoils the preference"),
        pytest.param([[bad(0), bad(0, 1)], [bad(1, 2)]], bad(1), id="only what is left"),
        pytest.param(
            [[bad(0), bad(1, 2)], [bad(0, 1, 2), bad(1, 2)]], bad(1, 2), id="as many as one needs"
        ),
        pytest.param(
            [[bad(0, 1, 2)], [bad(0, 1, 2), bad(0)]], bad(0, 1, 2), id="the most demanding counts"
        ),
        pytest.param(
            [[bad(0, 1), NOTHING], [bad(0), bad(0, 1)]], bad(0, 1), id="no nodes are no demand"
        ),
        pytest.param([[bad(2, 9)]], bad(2), id="nodes that the machine has not do not count"),
    ],
)
def test_one_set_of_nodes_serves_all_resources(
    offers: list[list[TopologyHint] | None], merged: TopologyHint
) -> None:
    assert merge(BEST_EFFORT, [0, 1, 2], offers) == Merged(merged, admit=True)


@pytest.mark.parametrize(
    ("policy", "offers", "merged"),
    [
        (TopologyPolicy.NONE, [[good(0)], [good(1)]], Merged(NOTHING, True)),
        (TopologyPolicy.BEST_EFFORT, [[good(0)], [good(1)]], Merged(bad(0, 1), True)),
        (TopologyPolicy.RESTRICTED, [[good(0)], [good(1)]], Merged(bad(0, 1), False)),
        (TopologyPolicy.RESTRICTED, [[good(0, 1)]], Merged(good(0, 1), True)),
        (TopologyPolicy.SINGLE_NUMA_NODE, [[good(0, 1)]], Merged(NOTHING, False)),
        (TopologyPolicy.SINGLE_NUMA_NODE, [[good(1), bad(0)], None], Merged(good(1), True)),
        (TopologyPolicy.SINGLE_NUMA_NODE, [[bad(1)]], Merged(NOTHING, False)),
        (TopologyPolicy.SINGLE_NUMA_NODE, [None], Merged(ANY, True)),
    ],
)
def test_the_policy_decides_who_comes_in(
    policy: TopologyPolicy, offers: list[list[TopologyHint] | None], merged: Merged
) -> None:
    assert merge(policy, [0, 1], offers) == merged


def test_the_closest_nodes_win_among_sets_of_one_size() -> None:
    distances = {0: (10, 30, 20), 1: (30, 10, 20), 2: (20, 20, 10)}
    pairs = [good(0, 1), good(1, 2), good(0, 2)]

    assert merge(BEST_EFFORT, range(3), [pairs]).hint == good(0, 1)
    assert merge(BEST_EFFORT, range(3), [pairs], distances).hint == good(0, 2)
    assert merge(BEST_EFFORT, range(3), [[*pairs, good(1)]], distances).hint == good(1)


def test_of_too_many_sets_of_one_size_the_lowest_are_compared() -> None:
    distances = {node: [10 if node == other else 20 for other in range(64)] for node in range(64)}
    pairs = list(combinations(range(64), 2))
    narrow = [good(*pair) for pair in pairs]
    wide = [good(*set(range(64)).difference(pair)) for pair in pairs]

    assert merge(BEST_EFFORT, range(64), [narrow], distances) == Merged(good(0, 1), admit=True)
    assert merge(BEST_EFFORT, range(64), [wide], distances) == Merged(
        good(*range(62)), admit=True, proven=False
    )


def test_a_single_node_is_not_chosen_by_distances() -> None:
    offers = [[good(0), good(1)]]
    distances = {0: (11, 20), 1: (20, 10)}

    assert merge(BEST_EFFORT, [0, 1], offers, distances).hint == good(1)
    assert merge(TopologyPolicy.SINGLE_NUMA_NODE, [0, 1], offers, distances).hint == good(0)


def test_a_machine_with_one_node_is_never_refused_for_having_no_other() -> None:
    merged = merge(TopologyPolicy.SINGLE_NUMA_NODE, [0], [[good(0)]])

    assert merged == Merged(ANY, admit=True)


def test_complete_offers_of_nine_nodes_are_merged_exactly() -> None:
    # Each resource has room on one node of its own only, so no two agree.
    nine = dict.fromkeys(range(9), 8)
    offers = [generate(4, nine, {node: 8}).hints for node in range(9)]

    merged = merge(BEST_EFFORT, nine, offers)

    assert merged == Merged(bad(0), admit=True)


def test_a_merge_that_could_not_look_at_everything_says_so() -> None:
    # 4 times 300 sets without any order: 8100 million combinations.
    offers = [
        [
            bad(*(node for node in range(64) if node * (start + 7) % 61 > start % 29))
            for start in range(at, at + 300)
        ]
        for at in (0, 1000, 2000, 3000)
    ]

    merged = merge(BEST_EFFORT, range(64), offers)

    assert not merged.proven
    assert merged.admit
    assert merged.hint.nodes
    assert merged == merge(BEST_EFFORT, range(64), offers[::-1])


@pytest.mark.parametrize(
    ("devices", "hints"),
    [
        pytest.param([], None, id="no device has nodes"),
        pytest.param([{1}], (good(1),), id="one node"),
        pytest.param([{0}, {1}], (good(0, 1),), id="a node each"),
        pytest.param([{0, 1}], (good(0), good(1)), id="near two nodes"),
        pytest.param([{0, 1}, {1}], (good(1),), id="near two, and one of them is needed"),
        pytest.param([{0, 1}, {1, 2}], (good(1),), id="near a common node"),
        pytest.param([{0, 1}, {2}], (good(0, 2), good(1, 2)), id="near two others"),
    ],
)
def test_the_nodes_of_given_devices_are_the_fewest_that_touch_each(
    devices: list[set[int]], hints: tuple[TopologyHint, ...] | None
) -> None:
    assert of_devices([frozenset(nodes) for nodes in devices]) == hints
