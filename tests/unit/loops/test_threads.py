"""A thread that one loop owns, and asks whether it runs."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING

import pytest

from cpupool.loops.threads import OwnedThread, ThreadFailed
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


class Work:
    """A thread that answers when it is asked, and does what the test wants besides."""

    def __init__(self, silent_s: float, every_s: float = 0.0) -> None:
        self.orders: Queue[str] = Queue()
        self.failed = threading.Event()
        self.answered = threading.Semaphore(0)
        self.release = threading.Event()
        self.release.set()
        self.thread = OwnedThread(
            "worker",
            self._run,
            ask=lambda: self.orders.put("answer"),
            failed=self.failed.set,
            silent_s=silent_s,
            every_s=every_s,
        )

    def _run(self) -> None:
        while (order := self.orders.get(timeout=DEADLINE_S)) != "end":
            if order == "fail":
                raise SystemExit
            self.release.wait(DEADLINE_S)
            self.thread.answer()
            self.answered.release()


@pytest.fixture
def patient() -> Iterator[Work]:
    work = Work(silent_s=DEADLINE_S)
    work.thread.start()
    yield work
    work.orders.put("end")
    work.thread.join()


def test_a_thread_that_answers_is_asked_again(patient: Work) -> None:
    for _ in range(3):
        patient.thread.check()
        assert patient.answered.acquire(timeout=DEADLINE_S)


def test_a_thread_that_has_answered_is_left_alone_for_a_while() -> None:
    work = Work(silent_s=DEADLINE_S, every_s=2 * DEADLINE_S)
    work.thread.start()
    work.thread.check()
    answered = work.answered.acquire(timeout=DEADLINE_S)
    work.thread.check()
    work.orders.put("end")
    work.thread.join()
    assert (answered, work.answered.acquire(blocking=False)) == (True, False)


def test_a_thread_has_its_name_in_the_kernel(patient: Work) -> None:
    def names() -> list[str]:
        tasks = Path("/proc/self/task").iterdir()
        return [(task / "comm").read_text().strip() for task in tasks]

    eventually(lambda: "worker" in names(), lambda: str(names()))
    assert patient.thread.runs


def test_a_thread_that_has_failed_is_reported_to_its_owner(
    patient: Work, caplog: pytest.LogCaptureFixture
) -> None:
    patient.orders.put("fail")
    assert patient.failed.wait(DEADLINE_S)
    with pytest.raises(ThreadFailed, match="the thread 'worker' has ended: SystemExit; this"):
        patient.thread.check()
    assert "thread failed name=worker" in caplog.text


def test_a_thread_that_has_done_its_work_is_no_failure(patient: Work) -> None:
    patient.orders.put("end")
    eventually(lambda: not patient.thread.runs, "its end")
    patient.thread.check()
    assert not patient.failed.is_set()


def test_a_question_is_open_until_it_is_answered(patient: Work) -> None:
    patient.release.clear()
    patient.thread.ask()
    eventually(lambda: patient.thread.open_s > 0.0, "the question")
    patient.thread.ask()
    patient.release.set()
    assert patient.answered.acquire(timeout=DEADLINE_S)
    assert patient.thread.open_s == 0.0
    # It was not asked again meanwhile.
    assert patient.orders.empty()


def test_a_thread_that_has_ended_owes_no_answer(patient: Work) -> None:
    patient.orders.put("end")
    patient.thread.ask()
    eventually(lambda: not patient.thread.runs, "its end")
    patient.thread.ask()
    assert [patient.thread.open_s, patient.thread.late, patient.thread.hangs] == [0, False, False]


def test_a_thread_that_does_not_answer_has_failed() -> None:
    work = Work(silent_s=0.0)
    work.release.clear()
    work.thread.start()
    work.thread.check()
    with pytest.raises(ThreadFailed, match="the thread 'worker' has not answered for 0 s"):
        work.thread.check()
    work.release.set()
    work.orders.put("end")
    eventually(lambda: not work.thread.runs, "its end")
