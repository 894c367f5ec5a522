"""Whatever happens to a pod and its quotas, a look puts them right."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.workloads import ContainerID
from cpupool.host.cgroupfs import CgroupVersion
from tests.quota_nodes import (
    POD,
    Node,
    exclusive,
    kubelets,
    shared,
)

EVENTS = st.tuples(
    st.sampled_from(["start", "end", "overwrite", "another agent", "cpu gone", "cpu back"]),
    st.sampled_from(["pod", "main", "light"]),
    st.sampled_from([-1, 1_000, 50_000, 200_000, 400_000]),
    st.sampled_from([0.01, 0.5, 3.0, 30.0]),
)


@given(
    version=st.sampled_from(CgroupVersion),
    of_kubelet=st.booleans(),
    events=st.lists(EVENTS, max_size=15),
)
def test_whatever_happens_a_look_puts_it_right(
    version: CgroupVersion, of_kubelet: bool, events: list[tuple[str, str, int, float]]
) -> None:
    node = kubelets(shared()) if of_kubelet else Node((exclusive(), shared()))
    node.kernel.version = version
    for event, name, quota_us, later_s in events:
        node.now_s += later_s
        node.happen(event, name, quota_us)
        told = node.keep()
        while node.keeper.due_s < math.inf:
            node.now_s = node.keeper.due_s
            told = node.keep()

        assert {notice.event for notice in told} <= {"CPUQuotaContested"}
        for one in ("main", "light"):
            assignment = node.manager.snapshot().resolution.assignment(
                ("web-uid", ContainerID(f"{one}-id"))
            )
            has = node.kernel.given.get(node.path(one))
            if has is not None and assignment.limit is not None:
                assert has == assignment.limit.settle(has)
                assert node.kernel.given[POD].holds(has) or assignment.limit.or_unlimited
