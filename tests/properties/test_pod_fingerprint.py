"""A scheduler and an agent list the same pods in different orders."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cpupool.wire.pod_fingerprint import fingerprint
from tests.searching import examples

NAMES = st.sampled_from(["a", "b", "ab"])
POD = st.tuples(NAMES, NAMES)
PODS = st.sets(POD, max_size=3)


@examples(200)
@given(st.data(), PODS)
def test_the_order_of_pods_does_not_count(data: st.DataObject, pods: set[tuple[str, str]]) -> None:
    orders = st.permutations(sorted(pods))

    assert fingerprint(data.draw(orders)) == fingerprint(data.draw(orders))


@examples(200)
@given(PODS, POD, POD)
def test_namespace_and_name_of_each_pod_count(
    pods: set[tuple[str, str]], one: tuple[str, str], other: tuple[str, str]
) -> None:
    first, second = pods | {one}, pods | {other}

    assert (fingerprint(first) == fingerprint(second)) is (first == second)
