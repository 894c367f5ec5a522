"""Koordinator's choice is lawful whatever is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.core.pool_policy import ExclusivePolicy, NUMAPolicy
from cpupool.policies.accumulators.koordinator import OccupiedCPUs, take
from cpupool.policies.layout import Layout, Level
from tests.machines import Machine

MACHINES = st.builds(
    Machine,
    sockets=st.integers(1, 3),
    nodes=st.integers(1, 3),
    cores=st.integers(1, 4),
    threads=st.integers(1, 4),
    adjacent=st.booleans(),
    efficiency_cores=st.integers(0, 2),
)


@dataclass(frozen=True)
class Request:
    """What is asked of `take`."""

    layout: Layout
    available: CPUSet
    count: int
    full_cores: bool
    strategy: NUMAPolicy
    exclusive: ExclusivePolicy
    held: tuple[OccupiedCPUs, ...]
    preferred: CPUSet

    def taken(self, *, backwards: bool = False) -> CPUSet:
        """Take them, with every input in its order or the other way round."""
        order = -1 if backwards else 1
        return take(
            Layout.of(dict(list(self.layout.places.items())[::order])),
            CPUSet(list(self.available)[::order]),
            self.count,
            full_cores=self.full_cores,
            strategy=self.strategy,
            exclusive=self.exclusive,
            held=self.held[::order],
            preferred=self.preferred,
        ).cpus


@st.composite
def requests(draw: st.DrawFn) -> Request:
    layout = Layout.of_topology(draw(MACHINES).topology())

    def some() -> CPUSet:
        return CPUSet(draw(st.sets(st.sampled_from(list(layout.cpus)))))

    exclusive = st.sampled_from(ExclusivePolicy)
    earlier = [OccupiedCPUs(some(), draw(st.integers(1, 3)), draw(exclusive)) for _ in range(2)]
    available = some()
    return Request(
        layout=layout,
        available=available,
        count=draw(st.integers(0, len(available))),
        full_cores=draw(st.booleans()),
        strategy=draw(st.sampled_from(NUMAPolicy)),
        exclusive=draw(exclusive),
        held=tuple(earlier),
        preferred=some(),
    )


@given(requests())
def test_exactly_as_many_of_the_available_cpus_in_whatever_order_they_come(
    request: Request,
) -> None:
    taken = request.taken()

    assert len(taken) == request.count
    assert taken <= request.available
    assert taken == request.taken(backwards=True)


@given(requests())
def test_preferred_cpus_are_used_up_first(request: Request) -> None:
    first = request.available & request.preferred

    assert len(request.taken() & first) == min(request.count, len(first))


@given(st.integers(3, 6), st.integers(2, 4), st.booleans(), st.data())
def test_no_second_thread_of_a_core_while_another_core_is_free(
    cores: int, threads: int, adjacent: bool, data: st.DataObject
) -> None:
    machine = Machine(cores=cores, threads=threads, adjacent=adjacent)
    layout = Layout.of_topology(machine.topology())
    # It does not spread over fewer CPUs than a core has.
    some = st.sets(st.sampled_from(list(layout.cpus)), min_size=threads + 1)
    available = CPUSet(data.draw(some))
    count = data.draw(st.integers(0, len(available)))
    strategy = data.draw(st.sampled_from(NUMAPolicy))

    taken = take(layout, available, count, full_cores=False, strategy=strategy).cpus

    free, used = (layout.free(Level.CORE, cpus) for cpus in (available, taken))
    assert len(used) == min(count, len(free))
