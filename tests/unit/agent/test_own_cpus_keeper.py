"""The role that tells containers of their own CPUs, with clocks, CPUs and a kernel of the test."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.agent.own_cpus_keeper import SPARE_S, OwnCPUsKeeper
from cpupool.core.cpu_manager import STATIC
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.core.workloads import ContainerRef
from cpupool.host import files
from cpupool.host.own_folders import OwnFolders
from cpupool.manager.resizing import OwnCPUs, Reason
from tests import builders, moving
from tests.loops import running
from tests.own_cpus import BEGUN_S, NOTICE_S, REF, UID, Node
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def node(folder: Path) -> Node:
    return Node(folder)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Give a switch that fills the disk."""
    switch = [False]
    write = files.write_atomically

    def write_or_refuse(path: Path, data: bytes, *rest: Any, **options: Any) -> None:
        if switch[0]:
            raise HostFileError(str(path), "cannot be written (No space left on device)", "tidy up")
        write(path, data, *rest, **options)

    monkeypatch.setattr(files, "write_atomically", write_or_refuse)
    return switch


def test_a_container_that_is_created_finds_its_cpus(node: Node) -> None:
    node.create("4-7")
    assert node.told == ("4-7", "4-7", "")
    assert node.read()["baseline"] == "4-7"
    assert node.generations == 1
    assert node.look() == pytest.approx(30.0)


def test_a_shrink_is_announced_waited_for_and_told_as_complete(node: Node) -> None:
    node.create("0-7")
    node.resize("0-5")
    assert node.told == ("0-7", "0-5", "shrink -6-7 @1005")
    assert node.read()["change"]["notBefore"] == "2026-11-18T11:23:25Z"
    assert node.look(2.0) == pytest.approx(3.0)
    node.look(2.999)
    assert node.narrowed == []

    node.look(0.001)
    assert node.narrowed == [(1005.0, "main", "0-5")]
    # The kernel has not followed yet.
    node.look(1.0)
    assert node.told == ("0-7", "0-5", "shrink -6-7 @1005")
    node.change(settled=True)
    assert node.told == ("0-5", "0-5", "")
    assert node.generations == 3
    node.look(100.0)
    assert (node.generations, len(node.narrowed)) == (3, 1)


def test_the_end_of_a_notice_is_known_from_its_begin_to_its_end(node: Node) -> None:
    node.create("0-7")
    assert (node.keeper.notices(), node.announced) == ({}, 0)
    node.resize("0-5")
    ends = {REF: BEGUN_S + 1005.0}
    assert (node.keeper.notices(), node.announced) == (ends, 1)
    node.look(4.0)
    assert (node.keeper.notices(), node.announced) == (ends, 1)
    node.look(1.0)
    assert (node.keeper.notices(), node.announced) == ({}, 1)


def test_cpus_that_come_are_told_once_the_kernel_has_them(node: Node) -> None:
    node.create("0-3")
    node.resize("0-5")
    assert node.told == ("0-3", "0-3", "")
    node.look(1.0)
    assert node.generations == 1
    node.change(settled=True)
    assert node.told == ("0-5", "0-5", "grow +4-5")
    assert node.generations == 2
    node.look(100.0)
    node.restart()
    node.look()
    assert (node.told[2], node.generations, node.narrowed) == ("grow +4-5", 2, [])


@pytest.mark.parametrize(
    ("second", "announced", "ends"),
    [
        pytest.param("0-4", "shrink -5-7 @1007", (1007.0, "main", "0-4"), id="further"),
        pytest.param("0-6", "shrink -7 @1007", (1007.0, "main", "0-6"), id="partly back"),
    ],
)
def test_another_request_begins_the_delay_anew(
    node: Node, second: str, announced: str, ends: tuple[float, str, str]
) -> None:
    node.create("0-7")
    node.resize("0-5")
    node.look(2.0)
    node.resize(second)
    assert node.told == ("0-7", second, announced)
    node.look(4.0)
    assert node.narrowed == []
    node.look(1.0)
    assert node.narrowed == [ends]
    node.change(settled=True)
    assert node.told == (second, second, "")
    assert node.generations == 4


def test_cpus_that_come_and_go_between_two_looks_are_announced_too(node: Node) -> None:
    node.create("0-7")
    node.threads = ("0-8", "8")
    node.resize("0-5")
    node.look(1.0)
    # The container has grown to 0-8 meanwhile, and must leave CPU 8 again.
    more = CPUSet.parse("0-8")
    node.own[REF] = replace(node.own[REF], in_force=more, leaving=CPUSet.parse("6-8"))
    node.look(1.0)
    assert node.told == ("0-8", "0-5", "shrink -6-8 @1007")
    node.look(4.999)
    assert node.narrowed == []
    node.look(0.001)
    assert node.narrowed == [(1007.0, "main", "0-5")]


def test_a_request_that_takes_everything_back_ends_the_notice(node: Node) -> None:
    node.create("0-7")
    node.resize("0-5")
    node.look(2.0)
    node.resize("0-7")
    assert node.told == ("0-7", "0-7", "")
    node.look(10.0)
    assert (node.narrowed, node.generations) == ([], 3)

    # And a later one begins a whole delay.
    node.resize("0-5")
    node.look(4.0)
    assert node.narrowed == []
    node.look(1.0)
    assert len(node.narrowed) == 1


def test_a_request_that_takes_back_more_is_told_with_what_has_come(node: Node) -> None:
    node.create("0-7")
    node.resize("0-5")
    node.resize("0-8")
    assert node.told[1] == "0-5"
    node.change(settled=True)
    assert node.told == ("0-8", "0-8", "grow +8")


def test_a_shrink_before_the_kernel_has_what_has_come_is_announced_once_it_has(node: Node) -> None:
    node.create("0-1")
    node.resize("0-3")
    node.look(1.0)
    node.resize("0-2", settled=False)
    assert (node.told, node.generations) == (("0-1", "0-1", ""), 1)
    node.look(2.0)
    node.change(settled=True)
    assert node.told == ("0-3", "0-2", "compact -3 +2 @1008")
    node.look(4.999)
    assert node.narrowed == []
    node.look(0.001)
    assert node.narrowed == [(1008.0, "main", "0-2")]


def test_cpus_that_the_kernel_never_gives_are_taken_back_after_the_delay(node: Node) -> None:
    node.create("0-1")
    node.resize("0-3")
    node.resize("0-2", settled=False)
    node.look(5.0)
    assert node.narrowed == [(1005.0, "main", "0-2")]
    assert node.told == ("0-1", "0-1", "")


def test_without_a_delay_there_is_one_notice(node: Node) -> None:
    node.create("0-7", notice_s=0)
    node.resize("0-5")
    assert node.narrowed == [(1000.0, "main", "0-5")]
    assert node.told == ("0-7", "0-7", "")
    node.change(settled=True)
    assert node.told == ("0-5", "0-5", "shrink -6-7")
    assert node.generations == 2


def test_an_agent_that_starts_in_the_delay_begins_it_anew(node: Node) -> None:
    node.create("0-7")
    node.resize("0-5")
    node.now_s += 4.0
    node.restart()
    node.look()
    assert node.told == ("0-7", "0-5", "shrink -6-7 @1009")
    node.look(4.0)
    assert node.narrowed == []
    node.look(1.0)
    assert node.narrowed == [(1009.0, "main", "0-5")]
    node.restart()
    node.change(settled=True)
    assert node.told == ("0-5", "0-5", "")
    assert node.generations == 4


def test_the_delay_begins_when_the_folder_is_written(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("0-7")
    write = files.write_atomically

    def slow(path: Path, data: bytes, *rest: Any, **options: Any) -> None:
        node.now_s += 1.0
        write(path, data, *rest, **options)

    monkeypatch.setattr(files, "write_atomically", slow)
    node.resize("0-5")
    # Two files have changed: `assigned` and `cpus.json`.
    assert node.now_s == pytest.approx(1002.0)
    assert node.told[2] == "shrink -6-7 @1005"
    node.look(4.0)
    assert node.narrowed == []
    node.look(1.0)
    assert node.narrowed == [(1007.0, "main", "0-5")]


def test_a_notice_ends_early_when_no_thread_needs_what_leaves(node: Node) -> None:
    node.create("0-7")
    node.threads = ("0-7", "7", "6-7", "5-6")
    assert node.resize("0-5") == 2.0
    node.look(1.9)
    assert node.looked_s == []
    for left in (("0-7", "7", "5-6"), ("0-7", "6", "5-6")):
        node.threads = left
        node.look(0.5)
    assert (node.looked_s, node.narrowed) == ([1002.4, 1002.9], [])
    assert node.look(0.1) == pytest.approx(0.4)

    node.threads = ("0-7", "0", "5-6")
    node.look(0.4)
    assert node.narrowed == [(1003.4, "main", "0-5")]
    node.change(settled=True)
    assert node.told == ("0-5", "0-5", "")
    node.look(100.0)
    assert len(node.looked_s) == 3


def test_an_application_that_pins_nothing_still_has_the_time_to_read(node: Node) -> None:
    node.create("0-7")
    node.threads = ("0-7",)
    node.resize("0-5")
    node.look(1.999)
    assert node.narrowed == []
    node.look(0.001)
    assert node.narrowed == [(1002.0, "main", "0-5")]


@pytest.mark.parametrize("unread", [False, True])
def test_a_notice_that_nobody_follows_in_sight_of_the_agent_lasts(
    node: Node, full: list[bool], unread: bool
) -> None:
    node.create("0-7")
    full[0] = unread
    if unread:
        node.threads = ("0-7",)
    node.resize("0-5")
    for _ in range(9):
        node.look(0.5)
    # One look finds out that no thread is in sight; nothing is looked at if nothing is told.
    assert node.looked_s == ([] if unread else [1002.0])
    assert node.narrowed == []
    node.look(0.5)
    assert node.narrowed == [(1005.0, "main", "0-5")]


def test_a_folder_that_cannot_be_written_does_not_prolong_the_delay(
    node: Node, full: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    node.create("0-7")
    full[0] = True
    node.resize("0-5")
    assert node.look() == pytest.approx(2.0)
    ((pod, reason, message),) = node.heard.pods
    assert (pod, reason) == ("dpdk", "CPUNoticeFailed")
    assert "container main is not told of its CPUs" in message
    assert "No space left on device" in message
    assert caplog.text.count("container not told of its CPUs") == 1
    node.look(2.0)
    # The notice that comes late names the time that was kept from the beginning.
    full[0] = False
    node.look(2.0)
    assert node.told == ("0-7", "0-5", "shrink -6-7 @1005")
    assert node.look(0.5) == pytest.approx(0.5)

    full[0] = True
    node.look(0.5)
    assert node.narrowed == [(1005.0, "main", "0-5")]
    node.change(settled=True)
    assert node.told[0] == "0-7"
    assert len(node.heard.pods) == 2
    full[0] = False
    node.look(2.0)
    assert node.told == ("0-5", "0-5", "")
    assert node.look() == pytest.approx(30.0)


def test_a_container_without_a_folder_keeps_its_delay_and_gets_no_folder(node: Node) -> None:
    cpus = CPUSet.parse("0-7")
    node.own[REF] = OwnCPUs(cpus, cpus, cpus, CPUSet(), NOTICE_S)
    node.resize("0-5")
    node.keeper.repaired([REF])
    node.look(4.0)
    assert node.narrowed == []
    assert node.look(1.0) == pytest.approx(30.0)
    assert node.narrowed == [(1005.0, "main", "0-5")]
    assert not node.root.own_folders.exists()
    assert node.heard.pods == []


def test_a_notice_of_cpus_that_the_container_must_not_have_is_ended_again(node: Node) -> None:
    node.create("0-7")
    node.resize("0-5")
    # Another request comes between the look and the end of the notice.
    narrow = node.narrow

    def late(ref: ContainerRef, assigned: CPUSet, leaving: CPUSet) -> bool:
        node.own[ref] = replace(node.own[ref], assigned=CPUSet.parse("0-6"), leaving=CPUSet.of(7))
        return narrow(ref, assigned, leaving)

    node.narrow = late  # type: ignore[method-assign]
    assert node.look(5.0) <= 2.0
    node.narrow = narrow  # type: ignore[method-assign]
    assert node.own[REF].in_force == CPUSet.parse("0-7")
    node.look()
    assert node.told == ("0-7", "0-6", "shrink -7 @1010")
    node.look(5.0)
    assert node.narrowed[-1] == (1010.0, "main", "0-6")


def test_a_cpu_that_goes_offline_or_returns_is_told_after_it(node: Node) -> None:
    node.create("4-7")
    node.change(in_force="4-6")
    assert node.told == ("4-6", "4-7", "offline -7")
    node.change(in_force="4-7")
    assert node.told == ("4-7", "4-7", "online +7")
    node.change(in_force="5-7", settled=False)
    assert node.told == ("4-7", "4-7", "online +7")
    node.change(settled=True)
    assert node.told == ("5-7", "4-7", "offline -4")
    assert (node.generations, node.narrowed) == (4, [])


def test_a_cpu_that_goes_offline_in_a_notice_leaves_the_delay_as_it_is(node: Node) -> None:
    node.create("0-7")
    node.resize("0-5")
    node.look(2.0)
    node.change(in_force="0-4,6-7")
    assert node.told == ("0-4,6-7", "0-5", "shrink -6-7 @1005")
    # All that leaves is offline: the notice ends all the same.
    node.change(in_force="0-4")
    node.look(3.0)
    assert node.narrowed == [(1005.0, "main", "0-5")]
    node.change(in_force="0-4", settled=True)
    assert node.told == ("0-4", "0-5", "")

    node.change(in_force="0-5")
    assert node.told == ("0-5", "0-5", "online +5")


def test_the_end_of_a_shrink_tells_what_else_has_left(node: Node) -> None:
    node.create("0-7")
    node.resize("0-5")
    node.look(5.0)
    node.change(in_force="0-4", settled=True)
    assert node.told == ("0-4", "0-5", "offline -5")


def test_a_move_announces_what_leaves_and_names_what_has_come(node: Node) -> None:
    node.create("0-3")
    node.change(assigned="0-1,4-5", in_force="0-5", leaving="2-3")
    assert node.told == ("0-5", "0-1,4-5", "compact -2-3 +4-5 @1005")
    node.restart()
    node.look(1.0)
    assert node.told == ("0-5", "0-1,4-5", "compact -2-3 +4-5 @1006")
    node.look(5.0)
    node.change(settled=True)
    assert node.told == ("0-1,4-5", "0-1,4-5", "")


def test_who_else_changes_cpus_is_named(node: Node) -> None:
    node.create("0-3")
    node.change(assigned="2-5", in_force="2-5", cause=Reason.PLUGIN)
    assert node.told == ("2-5", "2-5", "plugin -0-1 +4-5")
    node.change(in_force="2-4")
    assert node.told == ("2-4", "2-5", "offline -5")


def test_a_container_learns_that_its_cpus_are_its_own_no_longer(
    node: Node, full: list[bool]
) -> None:
    node.create("0-3")
    node.change(cause=Reason.PLUGIN)
    del node.own[REF]
    full[0] = True
    assert node.look() == pytest.approx(2.0)
    assert node.told[0] == "0-3"
    full[0] = False
    node.look(2.0)
    assert (node.told, node.generations) == (("", "", "plugin -0-3"), 2)
    node.look(100.0)
    assert node.generations == 2


def test_a_container_keeps_its_cpus_under_a_policy_that_resizes_none(folder: Path) -> None:
    node = moving.Node(folder)
    node.run("a", 6)
    node.settle()
    before = node.told("a")
    assert str(before.cpus) == node.cpus("a") == "1-3,17-19"

    node.reconfigure(replace(moving.MOVING, policy=STATIC, compaction=None))
    node.settle()
    assert node.own_cpus() == {}
    assert (node.told("a"), node.cpus("a")) == (before, "1-3,17-19")


def test_the_folder_of_a_pod_that_has_ended_stays_as_it_is(node: Node) -> None:
    node.create("0-3")
    node.listed = False
    del node.own[REF]
    node.look()
    assert node.told == ("0-3", "0-3", "")


def test_cpus_that_another_program_has_overwritten_get_a_generation(node: Node) -> None:
    node.create("0-3")
    for number in (2, 3):
        node.keeper.repaired([REF, ContainerRef("other", "main")])
        node.look()
        assert (node.told, node.generations) == (("0-3", "0-3", "repair"), number)
    node.look(30.0)
    assert node.generations == 3

    # In a notice the announcement stays, and both at a time are one news.
    node.resize("0-1")
    node.keeper.repaired([REF])
    node.look()
    assert (node.told, node.generations) == (("0-3", "0-1", "shrink -2-3 @1035"), 5)
    node.look(5.0)
    node.keeper.repaired([REF])
    node.look()
    assert node.generations == 5
    node.change(settled=True)
    assert (node.told, node.generations) == (("0-1", "0-1", ""), 6)


def test_a_repair_is_told_as_soon_as_the_folder_can_be_written(
    node: Node, full: list[bool]
) -> None:
    node.create("0-3")
    full[0] = True
    node.keeper.repaired([REF])
    for _ in range(3):
        node.look(2.0)
    assert (node.generations, len(node.heard.pods)) == (1, 1)
    full[0] = False
    node.look(2.0)
    node.look(2.0)
    assert (node.told[2], node.generations) == ("repair", 2)


def test_what_another_program_does_to_a_folder_is_undone_by_the_next_look(node: Node) -> None:
    node.create("0-3")
    node.resize("0-1")
    told = node.told
    (node.path / "cpus").write_text("0-63")
    (node.path / "assigned").unlink()
    node.look(30.0)
    assert node.told == told
    # The notice went on.
    assert node.narrowed == [(1030.0, "main", "0-1")]

    node.change(settled=True)
    (node.path / "cpus.json").unlink()
    node.look(30.0)
    assert node.told == ("0-1", "0-1", "")


def test_a_folder_that_another_program_has_removed_is_reported_once(node: Node) -> None:
    node.create("0-7")
    shutil.rmtree(node.path)
    node.look(30.0)
    node.resize("0-5")
    node.look(30.0)
    assert [reason for _, reason, _ in node.heard.pods] == ["CPUNoticeFailed"]
    assert not node.path.exists()
    assert [cpus for _, _, cpus in node.narrowed] == ["0-5"]


def test_a_wake_up_without_news_reads_no_folder(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("0-3")
    monkeypatch.setattr(OwnFolders, "told", None)
    node.keeper.step()


@pytest.mark.parametrize("listed", [True, False])
def test_a_container_whose_folder_cannot_be_made_starts_without_one(
    node: Node, full: list[bool], listed: bool
) -> None:
    node.listed = listed
    full[0] = True
    strange = ContainerRef("..", "main")
    node.own |= dict.fromkeys(
        (REF, strange), OwnCPUs(*(CPUSet.parse("4-7"),) * 3, CPUSet(), NOTICE_S)
    )
    assert node.keeper.prepare(REF) is None
    told = [message for _, _, message in node.heard.pods] + [
        message for _, message in node.heard.nodes
    ]
    assert len(told) == 1
    assert "container main is not told of its CPUs" in told[0]
    assert told[0].startswith(f"pod {UID}: ") != listed

    full[0] = False
    assert node.keeper.prepare(REF)
    assert node.keeper.prepare(strange) is None


def test_a_container_whose_cpus_cannot_change_has_no_folder(node: Node) -> None:
    assert node.keeper.prepare(REF) is None
    assert not node.root.own_folders.exists()


def test_a_container_that_is_created_again_knows_the_present_and_what_is_announced(
    node: Node,
) -> None:
    node.create("0-7")
    node.resize("0-5")
    node.look(2.0)
    assert node.keeper.prepare(REF)
    assert node.told == ("0-7", "0-5", "shrink -6-7 @1005")
    node.look(3.0)
    # The kernel has the CPUs of the new container from its creation on.
    assert node.keeper.prepare(REF)
    assert node.told == ("0-5", "0-5", "")


def test_a_container_that_is_created_before_the_role_looks_has_its_whole_delay(node: Node) -> None:
    node.create("0-7")
    node.own[REF] = replace(
        node.own[REF], assigned=CPUSet.parse("0-5"), leaving=CPUSet.parse("6-7")
    )
    assert node.keeper.prepare(REF)
    assert node.told == ("0-7", "0-5", "shrink -6-7 @1005")
    node.look(5.0)
    assert node.narrowed == [(1005.0, "main", "0-5")]


def test_two_containers_have_delays_of_their_own(node: Node) -> None:
    side = ContainerRef(UID, "side")
    node.create("0-3")
    node.create("4-7", notice_s=2.0, ref=side)
    node.own[side] = replace(
        node.own[side], assigned=CPUSet.parse("4-5"), leaving=CPUSet.parse("6-7")
    )
    node.resize("0-1")
    node.look(2.0)
    assert node.narrowed == [(1002.0, "side", "4-5")]
    node.look(3.0)
    assert node.narrowed[1:] == [(1005.0, "main", "0-1")]


def test_a_notice_does_not_wait_for_a_look_at_the_threads_of_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = ContainerRef(UID, "side")
    node.create("4-7", notice_s=9.0, ref=side)
    node.create("0-3")
    node.own[side] = replace(
        node.own[side], assigned=CPUSet.parse("4-5"), leaving=CPUSet.parse("6-7")
    )
    node.resize("0-1")

    def slow(_ref: ContainerRef, _cpus: CPUSet) -> bool:
        node.now_s += 1.0
        return False

    monkeypatch.setattr(node, "needs", slow)
    node.look(5.0)
    assert node.narrowed == [(1005.0, "main", "0-1"), (1006.0, "side", "4-5")]


def test_looks_at_many_threads_take_a_tenth_of_the_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = ContainerRef(UID, "side")
    node.create("4-7", notice_s=60.0, ref=side)
    node.create("0-3", notice_s=60.0)
    node.own[side] = replace(
        node.own[side], assigned=CPUSet.parse("4-5"), leaving=CPUSet.parse("6-7")
    )
    node.resize("0-1")
    looked: list[str] = []

    def slow(ref: ContainerRef, _cpus: CPUSet) -> bool:
        node.now_s += 0.5
        looked.append(ref.name)
        return True

    monkeypatch.setattr(node, "needs", slow)
    assert node.look(2.0) == pytest.approx(9.0)
    node.look(8.999)
    assert sorted(looked) == ["main", "side"]
    node.look(0.001)
    assert sorted(looked) == ["main", "main", "side", "side"]


def test_a_container_that_ends_in_a_notice_is_forgotten(node: Node) -> None:
    node.create("0-7")
    node.resize("0-5")
    own, node.listed = node.own.pop(REF), False
    node.look(5.0)
    assert node.narrowed == []
    # A container of the same name begins with a whole delay.
    node.own[REF], node.listed = own, True
    node.look()
    assert node.told[2] == "shrink -6-7 @1010"


def test_the_folders_of_a_pod_go_when_it_is_neither_listed_nor_has_a_cgroup(node: Node) -> None:
    node.create("0-3")
    node.create("4-7", ref=ContainerRef(UID, "side"))
    del node.own[REF], node.own[ContainerRef(UID, "side")]
    node.look(2 * SPARE_S)
    assert node.path.is_dir()

    node.there = None
    node.look(2 * SPARE_S)
    node.there = set()
    node.look()
    node.look(SPARE_S - 30.0)
    assert node.path.is_dir()
    # A container that is created now is not known before.
    node.own[REF] = OwnCPUs(*(CPUSet.parse("0-3"),) * 3, CPUSet(), NOTICE_S)
    node.keeper.prepare(REF)
    del node.own[REF]
    node.look(30.0)
    node.look(SPARE_S - 30.0)
    assert node.path.is_dir()
    node.look(30.0)
    assert not (node.root.own_folders / UID).exists()
    assert node.root.own_folders.is_dir()


def test_folders_that_cannot_be_removed_are_reported_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = node.root.base / "elsewhere"
    (elsewhere / "main").mkdir(parents=True)
    node.root.own_folders.mkdir(parents=True)
    (node.root.own_folders / "link").symlink_to(elsewhere)
    for _ in range(4):
        node.look(SPARE_S)
    assert caplog.text.count("folders of pods that are gone cannot be removed") == 1
    assert (elsewhere / "main").is_dir()


class _Killed(BaseException):
    """The agent is dead from here on."""


def _repair(node: Node) -> None:
    node.keeper.repaired([REF])
    node.look()


_LIFE: tuple[Callable[[Node], object], ...] = (
    lambda node: node.create("0-7"),
    lambda node: node.resize("0-5"),
    lambda node: node.look(NOTICE_S),
    lambda node: node.change(settled=True),
    lambda node: node.resize("0-9", settled=True),
    _repair,
    lambda node: node.resize("0-6"),
    lambda node: node.resize("0-5"),
    lambda node: node.look(NOTICE_S),
    lambda node: node.change(settled=True),
    lambda node: node.change(in_force="0-4"),
    lambda node: node.change(in_force="0-5"),
)


class _Dying:
    """An agent that is killed once, before or after one of its writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes_left = 0
        self.after = False
        self.wrote: Callable[[], None] = lambda: None
        self._write = files.write_atomically
        monkeypatch.setattr(files, "write_atomically", self._write_or_die)

    def _write_or_die(self, path: Path, data: bytes, *rest: Any, **options: Any) -> None:
        self.writes_left -= 1
        if self.writes_left or self.after:
            self._write(path, data, *rest, **options)
            self.wrote()
        if not self.writes_left:
            raise _Killed

    def live(self, node: Node) -> bool:
        """Let everything happen to a node; return whether its agent was killed."""
        killed = False
        for event in _LIFE:
            try:
                event(node)
            except _Killed:
                killed = True
                begun_s = node.now_s
                node.restart()
                event(node) if event is _LIFE[0] else node.look()
                assert [end for end in node.narrowed if end[0] > begun_s] == []
            own = node.own[REF]
            if own.settled:
                assert node.told[:2] == (str(own.in_force), str(own.assigned))
        return killed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_agent_that_is_killed_between_two_writes_goes_on_where_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    dying = _Dying(monkeypatch)
    dying.after = after
    died = 0
    while True:
        node = Node(folder / str(died))
        dying.wrote = node.note
        dying.writes_left = died + 1
        if not dying.live(node):
            break
        assert [cpus for _, _, cpus in node.narrowed] == ["0-5", "0-5"]
        assert not node.read()["change"] or "notBefore" not in node.read()["change"]
        died += 1
    # The files that the events write: three at the creation, then those that differ.
    assert died == 3 + 2 + 2 + 3 + 1 + 2 + 2 + 2 + 2 + 2


def test_the_loop_ends_a_notice_by_itself(folder: Path) -> None:
    node = Node(folder)
    node.create("0-7", notice_s=0.05)
    has = node.own_cpus
    node.own_cpus = lambda: {  # type: ignore[method-assign]
        ref: replace(own, settled=True) for ref, own in has().items()
    }
    settled = OwnCPUsKeeper(
        node,
        OwnFolders(node.root, node.heard),
        telemetry=builders.telemetry(events=node.heard),
        announced=node.count,
    )
    with running(settled.run, wake=settled.wake):
        node.own[REF] = replace(
            node.own[REF], assigned=CPUSet.parse("0-5"), leaving=CPUSet.parse("6-7")
        )
        settled.wake()
        eventually(lambda: node.narrowed, "the end of the notice")
        settled.wake()
        # One file after the other is written: only the document is complete at any time.
        complete = {"cpus": "0-5", "assigned": "0-5", "change": None}.items()
        eventually(lambda: complete <= node.read().items(), lambda: str(node.read()))
