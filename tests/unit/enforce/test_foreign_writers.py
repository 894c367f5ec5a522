from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.enforce.foreign_writers import Reason, foreign_writer, reason

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
def test_the_writer_is_recognised_from_what_it_wrote(
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


@pytest.mark.parametrize(
    ("new", "was_right", "why"),
    [
        (True, False, Reason.NEW),
        (True, True, Reason.NEW),
        (False, False, Reason.MOVED),
        (False, True, Reason.UNKNOWN),
    ],
)
def test_only_who_overwrites_what_was_right_is_foreign(
    new: bool, was_right: bool, why: Reason
) -> None:
    assert reason(new=new, was_right=was_right) is why
