from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID
from cpupool.enforce import moves
from cpupool.enforce.moves import Move
from cpupool.manager.ports import POD_ITSELF, Way

NOBODY = CPUSet()
DEFAULT = CPUSet.parse("0-1")


def move(
    name: str, has: str, wants: str, *, own: bool = False, way: Way | None = Way.CGROUP
) -> Move:
    wanted = CPUSet.parse(wants)
    return Move(
        name,
        f"pod of {name}",
        ContainerID(name),
        CPUSet.parse(has),
        wanted,
        wanted if own else NOBODY,
        way,
    )


def names(batches: list[tuple[Move, ...]]) -> list[list[str]]:
    return [[one.path for one in batch] for batch in batches]


def test_who_leaves_goes_before_who_comes_and_cpupool_before_the_runtime() -> None:
    given_moves = [
        move("comes by NRI", "0-1", "4", own=True, way=Way.NRI),
        move("comes", "0-1", "2", own=True),
        move("leaves by NRI", "0-7", "0-1", way=Way.NRI),
        move("leaves, nobody knows how", "0-7", "0-1", way=None),
        move("leaves", "0-7", "0-1"),
        move("narrows onto its own", "0-7", "5", own=True),
    ]
    assert names(list(moves.batches(given_moves))) == [
        ["leaves"],
        ["narrows onto its own"],
        ["leaves, nobody knows how"],
        ["leaves by NRI"],
        ["comes"],
        ["comes by NRI"],
    ]


def test_a_pods_own_cgroup_is_narrowed_before_its_containers() -> None:
    """The kernel has moved processes into it, onto the CPUs of others."""
    pod = Move("pod", "uid", POD_ITSELF, DEFAULT, CPUSet.of(1), NOBODY, Way.CGROUP)
    inside = Move("pod/c", "uid", ContainerID("c"), DEFAULT, CPUSet.of(1), NOBODY, Way.NRI)
    assert names(list(moves.batches([inside, pod]))) == [["pod"], ["pod/c"]]


def test_the_runtime_is_asked_for_eight_at_once() -> None:
    by_nri = [move(str(number), "0-7", "0-1", way=Way.NRI) for number in range(20)]
    by_question = [move(str(number), "0-7", "0-1", way=None) for number in range(3)]
    sizes = [len(batch) for batch in moves.batches([*by_nri, *by_question])]
    assert sizes == [1, 1, 1, 8, 8, 4]


def test_an_owner_waits_until_the_others_have_left() -> None:
    owner = move("owner", "0-1", "2-3", own=True)
    there = move("there", "2", "0-1")
    assert moves.goal(owner, [owner, there], DEFAULT) == CPUSet.of(3)
    assert moves.goal(owner, [owner, there, move("third", "3", "0-1")], DEFAULT) == DEFAULT
    assert moves.goal(owner, [owner], DEFAULT) == CPUSet.parse("2-3")


def test_with_nowhere_to_wait_it_does_not_wait() -> None:
    one, other = move("one", "2", "3", own=True), move("other", "3", "2", own=True)
    assert moves.goal(one, [one, other], NOBODY) == CPUSet.of(3)


def test_it_does_not_wait_for_its_own_pod_or_for_a_cpu_that_it_runs_on() -> None:
    owner = move("owner", "0-7", "2-3", own=True)
    assert moves.goal(owner, [move("there", "0-7", "0-1")], DEFAULT) == CPUSet.parse("2-3")
    coming = move("owner", "0-1", "2-3", own=True)
    sandbox = Move("s", coming.pod, ContainerID("s"), CPUSet.of(2), DEFAULT, NOBODY, Way.CGROUP)
    assert moves.goal(coming, [sandbox], DEFAULT) == CPUSet.parse("2-3")


_CPUS = st.sets(st.integers(0, 5), min_size=1).map(CPUSet)


@st.composite
def _mess(draw: st.DrawFn) -> list[Move]:
    """Containers anywhere, whose CPUs of their own are disjoint."""
    owners = draw(st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=6, max_size=6))
    made = []
    for name in "abcde":
        own = CPUSet(cpu for cpu, owner in enumerate(owners) if owner == name)
        wants = own or CPUSet.of(6)
        way = draw(st.sampled_from([*Way, None]))
        made.append(Move(name, name, ContainerID(name), draw(_CPUS), wants, own, way))
    return made


@given(_mess(), st.sets(st.sampled_from("abcde")))
def test_nobody_comes_onto_cpus_of_its_own_where_others_run(
    mess: list[Move], silent: set[str]
) -> None:
    """Whatever stays where it is, because the runtime does not move it."""
    at = {one.path: one.has for one in mess}
    refuge = CPUSet.of(6)
    for _ in range(6):
        wrong = [
            Move(one.path, one.pod, one.container, at[one.path], one.wants, one.own, one.way)
            for one in mess
            if at[one.path] != one.wants
        ]
        staying = {one.path: one for one in wrong}
        for batch in moves.batches(wrong):
            for one in batch:
                goal = moves.goal(one, staying.values(), refuge)
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
