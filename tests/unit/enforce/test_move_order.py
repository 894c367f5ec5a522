from __future__ import annotations

from cpupool.core.cgroups import POD_ITSELF, Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID
from cpupool.enforce import move_order
from cpupool.enforce.move_order import Move

NOBODY = CPUSet()
DEFAULT = CPUSet.parse("0-1")


def move(
    name: str,
    has: str,
    wants: str,
    *,
    own: bool = False,
    writer: Writer | None = Writer.CGROUP,
    owned: str = "",
) -> Move:
    wanted = CPUSet.parse(wants)
    return Move(
        name,
        f"pod of {name}",
        ContainerID(name),
        CPUSet.parse(has),
        wanted,
        wanted if own else NOBODY,
        writer,
        owned=CPUSet.parse(owned),
    )


def names(batches: list[tuple[Move, ...]]) -> list[list[str]]:
    return [[one.path for one in batch] for batch in batches]


def test_who_leaves_goes_before_who_comes_and_cpupool_before_the_runtime() -> None:
    given_moves = [
        move("comes by NRI", "0-1", "4", own=True, writer=Writer.NRI),
        move("comes", "0-1", "2", own=True),
        move("leaves by NRI", "0-7", "0-1", writer=Writer.NRI),
        move("leaves, nobody knows how", "0-7", "0-1", writer=None),
        move("leaves", "0-7", "0-1"),
        move("narrows onto its own", "0-7", "5", own=True),
    ]
    assert names(list(move_order.batches(given_moves))) == [
        ["leaves"],
        ["narrows onto its own"],
        ["leaves, nobody knows how"],
        ["leaves by NRI"],
        ["comes"],
        ["comes by NRI"],
    ]


def test_a_pods_own_cgroup_is_narrowed_before_its_containers() -> None:
    """The kernel has moved processes into it, onto the CPUs of others."""
    pod = Move("pod", "uid", POD_ITSELF, DEFAULT, CPUSet.of(1), NOBODY, Writer.CGROUP)
    inside = Move("pod/c", "uid", ContainerID("c"), DEFAULT, CPUSet.of(1), NOBODY, Writer.NRI)
    assert names(list(move_order.batches([inside, pod]))) == [["pod"], ["pod/c"]]


def test_the_runtime_is_asked_for_eight_in_a_call_and_by_four_calls_at_once() -> None:
    by_nri = [move(str(number), "0-7", "0-1", writer=Writer.NRI) for number in range(20)]
    by_question = [move(str(number), "0-7", "0-1", writer=None) for number in range(9)]
    by_itself = [move(str(number), "0-7", "0-1") for number in range(2)]
    sizes = [len(batch) for batch in move_order.batches([*by_nri, *by_question, *by_itself])]
    assert sizes == [1, 1, 4, 4, 1, 8, 8, 4]


def test_all_that_leave_go_before_a_batch_with_one_that_comes() -> None:
    leaving = [move(f"leaves {number}", "0-7", "0-1", writer=None) for number in range(9)]
    coming = [move(f"comes {number}", "0-1", "4", own=True, writer=None) for number in range(2)]
    batches = [{one.gains for one in batch} for batch in move_order.batches([*coming, *leaving])]
    assert batches == [{NOBODY}, {NOBODY}, {NOBODY}, {CPUSet.of(4)}]


def test_an_owner_waits_until_the_others_have_left() -> None:
    owner = move("owner", "0-1", "2-3", own=True)
    there = move("there", "2", "0-1")
    assert move_order.goal(owner, [owner, there], DEFAULT) == CPUSet.of(3)
    assert move_order.goal(owner, [owner, there, move("third", "3", "0-1")], DEFAULT) == DEFAULT
    assert move_order.goal(owner, [owner], DEFAULT) == CPUSet.parse("2-3")


def test_with_nowhere_to_wait_it_does_not_wait() -> None:
    one, other = move("one", "2", "3", own=True), move("other", "3", "2", own=True)
    assert move_order.goal(one, [one, other], NOBODY) == CPUSet.of(3)


def test_it_does_not_wait_for_its_own_pod_or_for_a_cpu_that_it_runs_on() -> None:
    owner = move("owner", "0-7", "2-3", own=True)
    assert move_order.goal(owner, [move("there", "0-7", "0-1")], DEFAULT) == CPUSet.parse("2-3")
    coming = move("owner", "0-1", "2-3", own=True)
    sandbox = Move("s", coming.pod, ContainerID("s"), CPUSet.of(2), DEFAULT, NOBODY, Writer.CGROUP)
    assert move_order.goal(coming, [sandbox], DEFAULT) == CPUSet.parse("2-3")


def test_an_owner_that_leaves_is_alone_until_it_has_left() -> None:
    leaver = move("leaver", "2", "4", own=True, owned="2")
    shared = move("shared", "0-1,4", "0-2")
    assert move_order.goal(shared, [shared, leaver], DEFAULT) == DEFAULT
    assert move_order.goal(shared, [shared], DEFAULT) == CPUSet.parse("0-2")
    # Nor does it wait there, or come as the next owner.
    only = move("only", "0-1", "2")
    assert move_order.goal(only, [only, leaver], CPUSet.parse("0-2")) == DEFAULT
    owner = move("owner", "0-1", "2-3", own=True)
    assert move_order.goal(owner, [owner, leaver], DEFAULT) == CPUSet.of(3)
    # On others that it has now, it was never alone.
    coming = move("coming", "0-2", "4", own=True)
    assert move_order.goal(shared, [shared, coming], DEFAULT) == CPUSet.parse("0-2")
