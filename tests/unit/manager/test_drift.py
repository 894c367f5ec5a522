from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.manager.drift import Backoff, Reason, foreign_writer

CREATED = "0-3"
ONLINE = CPUSet.parse("0-7")
PLAIN = "kubepods/pod1/one"
SCOPE = "kubepods.slice/kubepods-pod1.slice/cri-containerd-one.scope"


@pytest.mark.parametrize(
    ("path", "found", "static_kubelet", "writer"),
    [
        pytest.param(PLAIN, "0-3", False, Reason.RUNTIME, id="as it was created"),
        pytest.param(SCOPE, "0-7", False, Reason.RUNTIME, id="every CPU"),
        pytest.param(SCOPE, "", False, Reason.SYSTEMD, id="a scope that is emptied"),
        pytest.param(PLAIN, "", False, Reason.UNKNOWN, id="emptied without systemd"),
        pytest.param(SCOPE, "5", False, Reason.UNKNOWN, id="any other set"),
        pytest.param(SCOPE, "", True, Reason.KUBELET_STATIC, id="a static kubelet was here"),
    ],
)
def test_the_writer_is_told_from_what_it_wrote(
    path: str, found: str, static_kubelet: bool, writer: Reason
) -> None:
    given = CPUSet.parse(found)
    told = foreign_writer(
        path, given, created=CREATED, online=ONLINE, static_kubelet=static_kubelet
    )
    assert told is writer
    assert told.foreign
    assert told.remedy


def test_what_we_did_ourselves_is_not_foreign() -> None:
    assert not Reason.NEW.foreign
    assert not Reason.MOVED.foreign


def tried(times: int, backoff: Backoff, start_s: float, step_s: float) -> Backoff:
    for number in range(times):
        backoff = backoff.after(start_s + number * step_s)
    return backoff


def test_ten_tries_in_ten_seconds_are_made_at_once_and_the_eleventh_is_one_too_many() -> None:
    ten = tried(10, Backoff(), 100.0, 0.5)
    assert ten.delay_s == 0
    assert ten.due_s == 104.5
    eleven = ten.after(105.0)
    assert (eleven.delay_s, eleven.due_s) == (0.2, 105.2)


def test_slower_tries_are_always_made_at_once() -> None:
    assert tried(100, Backoff(), 100.0, 1.0).delay_s == 0


def test_the_wait_doubles_up_to_ten_seconds() -> None:
    backoff = tried(11, Backoff(), 100.0, 0.0)
    waits = []
    for _ in range(8):
        waits.append(backoff.delay_s)
        backoff = backoff.after(backoff.due_s)
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_a_minute_of_quiet_forgives() -> None:
    backoff = tried(12, Backoff(), 100.0, 0.0)
    assert backoff.after(159.9).delay_s == 0.8
    assert backoff.after(160.0) == Backoff((160.0,))
