"""Quotas of any mix of containers: the kernel takes each step, and everything can be taken back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.bandwidth import Bandwidth, Limit, settle_pod
from cpupool.core.workloads import ContainerID
from cpupool.enforce.quota_repair import CgroupQuota, plan
from tests.quotas import QuotaModel

PERIODS = st.sampled_from([1_000, 7_777, 50_000, 100_000, 250_001, 1_000_000])
POD = "pod"


@dataclass(frozen=True)
class RecordedAnswer:
    """A container as the kubelet has made it, and what it is to have while it has its CPUs."""

    own_milli: int
    period_us: int
    limit: Limit | None

    @property
    def bandwidth(self) -> Bandwidth:
        return Bandwidth(-1, self.period_us).of_milli(self.own_milli)


@st.composite
def containers(draw: st.DrawFn) -> RecordedAnswer:
    own_milli = draw(st.integers(1, 8_000))
    limit = draw(
        st.sampled_from(
            [
                None,
                Limit(None),
                Limit(draw(st.integers(1, own_milli)), own_milli=own_milli),
                Limit(
                    own_milli + 1_000 * draw(st.integers(0, 4)),
                    or_unlimited=True,
                    own_milli=own_milli,
                ),
            ]
        )
    )
    return RecordedAnswer(own_milli, draw(PERIODS), limit)


class Node:
    """A pod on version 1, with the quotas that the kubelet and the runtime have given."""

    def __init__(self, pod_period_us: int, given: list[RecordedAnswer]) -> None:
        # The kubelet has one period for all; a container with another is somebody's doing.
        given = [one if one.limit else replace(one, period_us=pod_period_us) for one in given]
        self.base_milli = sum(one.own_milli for one in given)
        self.given = {f"{POD}/c{number}": one for number, one in enumerate(given)}
        share = sum((one.bandwidth.cpus or Fraction() for one in given), Fraction())
        pod = Bandwidth(-1, pod_period_us).of_milli(self.base_milli, at_least=share)
        self.kernel = QuotaModel(
            {
                POD: (pod.quota_us, pod.period_us),
                **{
                    path: (one.bandwidth.quota_us, one.period_us)
                    for path, one in self.given.items()
                },
            }
        )
        self.exact = pod == Bandwidth(-1, pod_period_us).of_milli(self.base_milli)

    def keep(self, *, lifted: bool) -> int:
        """Write what must be written, and give how many steps that took.

        Args:
            lifted: containers have their limits; otherwise each that has one has ended.
        """
        found = self.kernel.given
        limits = {
            path: one.limit for path, one in self.given.items() if one.limit and path in found
        }
        limited = [(limit, found[path]) for path, limit in limits.items() if lifted]
        lifts = any(one.limit == Limit(None) for one in self.given.values())
        wants = settle_pod(found[POD], self.base_milli, limited, lifts=lifts)
        levels = [
            CgroupQuota(path, found[path], limit.settle(found[path]), ContainerID(path))
            for path, limit in limits.items()
            if lifted
        ]
        steps = plan(CgroupQuota(POD, found[POD], wants), levels)
        for step in steps:
            self.kernel.limit(step.path, step.wants)
        return len(steps)

    def end(self) -> None:
        """End the containers that have a limit."""
        for path, one in self.given.items():
            if one.limit is not None:
                self.kernel.given.pop(path, None)


@given(pod_period_us=PERIODS, given=st.lists(containers(), min_size=1, max_size=5), data=st.data())
def test_each_step_is_lawful_and_the_end_is_right_stays_and_can_be_taken_back(
    pod_period_us: int, given: list[RecordedAnswer], data: st.DataObject
) -> None:
    node = Node(pod_period_us, given)
    kubelets = dict(node.kernel.given)
    node.keep(lifted=True)

    pod = node.kernel.given[POD]
    limits = {path: one.limit for path, one in node.given.items() if one.limit is not None}
    for path, limit in limits.items():
        assert node.kernel.given[path] == limit.settle(kubelets[path])
        assert pod.holds(node.kernel.given[path]) or limit.or_unlimited
    if any(limit.milli is None for limit in limits.values()):
        assert pod.cpus is None
    assert node.keep(lifted=True) == 0, "what is right is left alone"

    # Somebody writes what the kernel takes; a container that is not limited here is theirs.
    for path in data.draw(st.lists(st.sampled_from([POD, *limits]), max_size=8)):
        foreign = data.draw(st.sampled_from([-1, 1_000, 50_000, 200_000, 10**6]))
        before = node.kernel.given[path]
        node.kernel.given[path] = Bandwidth(foreign, before.period_us)
        if not node.kernel.lawful():
            node.kernel.given[path] = before
    foreign_none = {path for path, one in node.kernel.given.items() if one.cpus is None}
    node.keep(lifted=True)
    for path, limit in limits.items():
        if not (limit.or_unlimited and path in foreign_none):
            assert node.kernel.given[path] == limit.settle(kubelets[path])
    assert node.keep(lifted=True) == 0


@given(pod_period_us=PERIODS, given=st.lists(containers(), min_size=1, max_size=5))
def test_once_what_was_lifted_has_ended_the_pod_has_what_the_kubelet_gave(
    pod_period_us: int, given: list[RecordedAnswer]
) -> None:
    node = Node(pod_period_us, given)
    kubelets = node.kernel.given[POD]
    node.keep(lifted=True)
    node.end()
    node.keep(lifted=False)

    if node.exact:
        assert node.kernel.given[POD] == kubelets
    assert node.keep(lifted=False) == 0
