from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cgroups import Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID
from cpupool.enforce import move_order
from cpupool.enforce.move_order import Move

_CPUS = st.sets(st.integers(0, 5), min_size=1).map(CPUSet)


@st.composite
def _mess(draw: st.DrawFn) -> list[Move]:
    """Containers anywhere, whose CPUs of their own are disjoint."""
    owners = draw(st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=6, max_size=6))
    made = []
    for name in "abcde":
        own = CPUSet(cpu for cpu, owner in enumerate(owners) if owner == name)
        wants = own or CPUSet.of(6)
        writer = draw(st.sampled_from([*Writer, None]))
        made.append(Move(name, name, ContainerID(name), draw(_CPUS), wants, own, writer))
    return made


@given(_mess(), st.sets(st.sampled_from("abcde")))
def test_no_container_comes_onto_cpus_of_its_own_where_others_run(
    mess: list[Move], silent: set[str]
) -> None:
    """Whatever stays where it is, because the runtime does not move it."""
    at = {one.path: one.has for one in mess}
    refuge = CPUSet.of(6)
    for _ in range(6):
        wrong = [
            Move(one.path, one.pod, one.container, at[one.path], one.wants, one.own, one.writer)
            for one in mess
            if at[one.path] != one.wants
        ]
        staying = {one.path: one for one in wrong}
        for batch in move_order.batches(wrong):
            for one in batch:
                goal = move_order.goal(one, staying.values(), refuge)
                if one.path in silent or goal == one.has:
                    continue
                others = CPUSet.union(cpus for path, cpus in at.items() if path != one.path)
                assert others.isdisjoint(one.own & goal - at[one.path])
                at[one.path] = goal
                del staying[one.path]
    waits = {one.path for one in mess if at[one.path] != one.wants}
    stuck = CPUSet.union(at[path] for path in silent)
    for path in waits - silent:
        assert not stuck.isdisjoint(next(one for one in mess if one.path == path).own)


@given(st.integers(2, 6), st.sampled_from([*Writer]))
def test_containers_whose_cpus_are_swapped_never_meet(size: int, writer: Writer) -> None:
    refuge = CPUSet.of(2 * size)
    own = [CPUSet.of(2 * n, 2 * n + 1) for n in range(size)]
    at = {str(n): own[(n + 1) % size] for n in range(size)}
    for _ in range(2):
        wrong = [
            Move(name, name, ContainerID(name), has, own[int(name)], own[int(name)], writer)
            for name, has in at.items()
            if has != own[int(name)]
        ]
        staying = {one.path: one for one in wrong}
        for one in (one for batch in move_order.batches(wrong) for one in batch):
            goal = move_order.goal(one, staying.values(), refuge)
            assert goal
            others = CPUSet.union(cpus for path, cpus in at.items() if path != one.path)
            assert others.isdisjoint(goal - refuge)
            at[one.path] = goal
            del staying[one.path]
    assert at == {str(n): cpus for n, cpus in enumerate(own)}
