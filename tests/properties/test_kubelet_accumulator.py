"""Laws of taking CPUs, on small machines of every shape, lopsided ones included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.policies.accumulators.balance import share_out
from cpupool.policies.accumulators.kubelet import Taken, take_distributed, take_packed
from cpupool.policies.layout import Layout, Level, Place
from tests.conformance.oracle.kubelet_distribution import distribute, go_round

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Request:
    """CPUs asked for, and how."""

    places: dict[int, Place]
    available: CPUSet
    count: int
    group: int
    spread: bool
    by_uncore: bool
    distributed: bool

    def take(self) -> Taken:
        layout = Layout.of(self.places)
        if self.distributed:
            return take_distributed(
                layout, self.available, self.count, group=self.group, spread=self.spread
            )
        return take_packed(
            layout, self.available, self.count, spread=self.spread, by_uncore=self.by_uncore
        )


@st.composite
def requests(draw: st.DrawFn, *, alike: bool = False, whole: bool = False) -> Request:
    """Ask for CPUs of a machine.

    Args:
        draw: Hypothesis' own.
        alike: all cores have one or two CPUs.
        whole: cores are available as a whole or not at all, and whole ones are asked for.
    """
    threads = draw(st.integers(1, 2))
    sizes = [threads if alike else draw(st.integers(1, 3)) for _ in range(draw(st.integers(1, 12)))]
    ids = iter(draw(st.permutations(range(sum(sizes)))))
    nested = draw(st.booleans())
    places, cores = dict[int, Place](), list[CPUSet]()
    for core, size in enumerate(sizes):
        node = draw(st.integers(0, 3))
        socket = node // 2 if nested else draw(st.integers(0, 4))
        cores.append(CPUSet(next(ids) for _ in range(size)))
        places |= dict.fromkeys(cores[-1], Place(core, socket, node, draw(st.integers(0, 3))))
    pieces = cores if whole else [CPUSet.of(cpu) for cpu in places]
    available = CPUSet.union(draw(st.lists(st.sampled_from(pieces), unique=True)))
    count = draw(st.integers(0, len(available)))
    return Request(
        places=places,
        available=available,
        count=count - count % threads if whole else count,
        group=threads if whole else draw(st.integers(1, 3)),
        spread=draw(st.booleans()),
        by_uncore=draw(st.booleans()),
        distributed=draw(st.booleans()),
    )


@given(requests())
def test_as_many_as_asked_for_are_taken_of_what_is_available(request: Request) -> None:
    taken = request.take()

    assert len(taken.cpus) == request.count
    assert taken.cpus <= request.available


@given(requests(), st.data())
def test_the_order_of_the_places_is_nothing(request: Request, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(list(request.places.items())))

    assert replace(request, places=dict(shuffled)).take() == request.take()


@given(requests(alike=True))
def test_as_many_cores_as_can_be_are_packed_as_a_whole(request: Request) -> None:
    taken = replace(request, spread=False, distributed=False).take().cpus

    cores = Layout.of(request.places).groups[Level.CORE]
    threads = len(cores[0])
    whole = sum(core <= request.available for core in cores.values())
    assert sum(core <= taken for core in cores.values()) == min(whole, request.count // threads)


@given(requests(alike=True, whole=True))
def test_no_core_is_cut_where_whole_ones_do(request: Request) -> None:
    taken = replace(request, spread=False).take().cpus

    cores = Layout.of(request.places).groups[Level.CORE]
    assert all(core <= taken or core.isdisjoint(taken) for core in cores.values())


@given(st.lists(st.integers(0, 12), min_size=1, max_size=7), st.integers(1, 3), st.data())
def test_shares_are_those_of_trying_everything(
    free: Sequence[int], group: int, data: st.DataObject
) -> None:
    groups = data.draw(st.integers(1, max(1, sum(free) // group)))
    fewest = data.draw(st.integers(1, 3))

    shares = share_out(free, groups, group, fewest)

    tried = distribute(free, groups, group, fewest)
    assert (shares is None) == (tried is None)
    if shares and tried:
        left = [cpus - tried.even * (node in tried.chosen) for node, cpus in enumerate(free)]
        extra = go_round(left, tried.going_round, tried.rest, group)
        assert shares.proven
        assert shares.even == tried.even
        assert shares.extra == {node: extra[node] for node in tried.chosen}


@given(st.lists(st.integers(0, 40), min_size=8, max_size=64), st.integers(1, 4), st.data())
def test_many_nodes_give_what_was_asked_for(
    free: Sequence[int], group: int, data: st.DataObject
) -> None:
    groups = data.draw(st.integers(1, max(1, sum(free) // group)))

    shares = share_out(free, groups, group, 1)

    if shares is not None:
        given = {node: shares.even + more * group for node, more in shares.extra.items()}
        assert sum(given.values()) == groups * group
        assert all(cpus <= free[node] for node, cpus in given.items())
        assert shares.gain == sum(cpus * (2 * free[node] - cpus) for node, cpus in given.items())
