"""What the cpusetter makes of the events of a pod's start and end."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cpupool.agent import cgroup_news
from cpupool.agent.cgroup_news import CgroupNews, Look
from cpupool.core.workloads import ContainerID
from cpupool.enforce.writer_choice import Writers
from cpupool.host import files
from tests.runtimes import ModelRuntime, without_runtime
from tests.waiting import eventually

POD = "kubepods/burstable/pod01234567-89ab-cdef-0123-456789abcdef"
CONTAINER = f"{POD}/{'0' * 64}"
SCOPE = (
    "kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/"
    f"cri-containerd-{'0' * 64}.scope"
)


def asked(
    tmp_path: Path,
    changed: str,
    *,
    sets: bool = True,
    writers: Writers | None = None,
    right: str = "",
    shares: bool = False,
) -> Look:
    """Ask about a change, where the container of one cgroup is where it belongs."""
    writers = writers or without_runtime()
    return cgroup_news.of(
        tmp_path / changed, writers, (tmp_path / right).__eq__, lambda _pod: shares, sets=sets
    )


@pytest.mark.parametrize("container", [CONTAINER, SCOPE])
def test_a_new_container_and_a_write_of_its_cpus_or_quota_are_looked_at_at_once(
    tmp_path: Path, container: str
) -> None:
    (tmp_path / container).mkdir(parents=True)
    assert asked(tmp_path, container) is Look.AT_ONCE
    for file in ("cpuset.cpus", "cpu.max", "cpu.cfs_quota_us"):
        assert asked(tmp_path, f"{container}/{file}") is Look.AT_ONCE
    assert asked(tmp_path, f"{container}/cpu.cfs_quota_us", sets=False) is Look.AT_ONCE


def test_what_moves_no_container_waits_for_what_does(tmp_path: Path) -> None:
    (tmp_path / CONTAINER / "nested").mkdir(parents=True)
    for changed in (POD, f"{POD}/cpuset.cpus", f"{CONTAINER}/nested", f"{CONTAINER}/cpu.shares"):
        assert asked(tmp_path, changed) is Look.SOON
    assert asked(tmp_path, f"{POD}/gone") is Look.SOON
    assert asked(tmp_path, CONTAINER, sets=False) is Look.SOON
    # The kernel reports what it could not report one by one as the folder itself.
    assert asked(tmp_path, "kubepods") is Look.SOON


def test_what_moves_no_container_of_a_pod_that_only_shares_waits_longest(tmp_path: Path) -> None:
    (tmp_path / CONTAINER / "nested").mkdir(parents=True)
    for changed in (POD, f"{CONTAINER}/nested", f"{CONTAINER}/cpu.shares", f"{POD}/gone"):
        assert asked(tmp_path, changed, shares=True) is Look.LATER
    # It may run on wrong CPUs itself, and the kernel takes from it what its pod's cgroup lacks.
    assert asked(tmp_path, CONTAINER, shares=True) is Look.AT_ONCE
    assert asked(tmp_path, f"{CONTAINER}/cpuset.cpus", shares=True) is Look.AT_ONCE
    for file in ("cpuset.cpus", "cpuset.cpus.partition", "cpu.max"):
        assert asked(tmp_path, f"{POD}/{file}", shares=True) is Look.SOON
    assert asked(tmp_path, "kubepods", shares=True) is Look.SOON
    writers = Writers(None, ModelRuntime(here=True, delays=True), ModelRuntime())
    assert asked(tmp_path, f"{POD}/gone", writers=writers, shares=True) is Look.AT_ONCE


def test_a_write_of_a_pod_that_has_no_container_yet_waits_longest(tmp_path: Path) -> None:
    for made, look in ((POD, Look.LATER), (CONTAINER, Look.SOON)):
        (tmp_path / made).mkdir(parents=True)
        for file in ("cpuset.cpus", "cpu.cfs_quota_us"):
            assert asked(tmp_path, f"{POD}/{file}", shares=True) is look
    assert asked(tmp_path, f"{POD}/cpuset.cpus.partition", shares=True) is Look.SOON
    assert asked(tmp_path, f"{POD}/cpuset.cpus") is Look.SOON


def test_a_container_that_starts_is_known_by_its_cgroup_once(tmp_path: Path) -> None:
    (tmp_path / POD).mkdir(parents=True)
    runtime = ModelRuntime(here=True)
    runtime.begun |= {"0" * 64, "1" * 64}
    writers = Writers(None, runtime, ModelRuntime())
    asked: list[Path] = []

    def starts_right(cgroup: Path, _container: ContainerID) -> bool:
        asked.append(cgroup)
        return True

    news = CgroupNews(
        {tmp_path / "kubepods": True}, writers, lambda _cgroup: False, starts_right=starts_right
    )
    looks: list[Look] = []
    with news.followed(looks.append):
        news.ensure()
        for each in "01":
            (tmp_path / POD / (each * 64)).mkdir()
        eventually(lambda: len(looks) == 2, "both are seen")
        assert set(looks) == {Look.NOT}
        runtime.begun.remove("1" * 64)
        news.take()
        assert not news.starts_right(ContainerID("1" * 64)), "its creation has failed"
        assert news.starts_right(ContainerID("0" * 64))
        assert not news.starts_right(ContainerID("0" * 64))
        assert asked == [tmp_path / CONTAINER]


def test_what_is_not_kept_asks_for_nothing(tmp_path: Path) -> None:
    (tmp_path / CONTAINER).mkdir(parents=True)
    news = CgroupNews({tmp_path / "kubepods": True}, without_runtime(), lambda _cgroup: False)
    looks: list[Look] = []
    with news.followed(looks.append):
        news.ensure()
        (tmp_path / CONTAINER / "cgroup.procs").write_text("1")
        (tmp_path / CONTAINER / "nested.service").mkdir()
        (tmp_path / CONTAINER / "cpuset.cpus").write_text("1")
        eventually(lambda: looks, "the write of the CPUs is seen")
        assert set(looks) == {Look.AT_ONCE}


def test_a_write_that_leaves_a_container_where_it_belongs_asks_for_nothing(tmp_path: Path) -> None:
    (tmp_path / CONTAINER).mkdir(parents=True)
    for file, look in (("cpuset.cpus", Look.NOT), ("cpu.max", Look.AT_ONCE)):
        assert asked(tmp_path, f"{CONTAINER}/{file}", right=CONTAINER) is look
    assert asked(tmp_path, CONTAINER, right=CONTAINER) is Look.AT_ONCE
    runtime = ModelRuntime(here=True, delays=True)
    writers = Writers(None, runtime, ModelRuntime())
    waited = asked(tmp_path, f"{CONTAINER}/cpuset.cpus", right=CONTAINER, writers=writers)
    assert waited is Look.AT_ONCE, "a start may wait for it"


def test_a_container_that_the_runtime_is_starting_asks_for_nothing(tmp_path: Path) -> None:
    runtime = ModelRuntime(here=True)
    runtime.begun.add("0" * 64)
    writers = Writers(None, runtime, ModelRuntime())
    (tmp_path / CONTAINER).mkdir(parents=True)
    assert asked(tmp_path, CONTAINER, writers=writers) is Look.NOT
    assert asked(tmp_path, f"{CONTAINER}/cpuset.cpus", writers=writers) is Look.NOT
    assert asked(tmp_path, f"{POD}/other/cpuset.cpus", writers=writers) is Look.AT_ONCE


def test_a_start_that_waits_for_a_container_to_go_hears_of_it_at_once(tmp_path: Path) -> None:
    runtime = ModelRuntime(here=True, delays=True)
    writers = Writers(None, runtime, ModelRuntime())
    assert asked(tmp_path, f"{POD}/gone", writers=writers) is Look.AT_ONCE


@pytest.mark.parametrize(
    "changed",
    [POD, CONTAINER, SCOPE, f"{POD}/cpuset.cpus", f"{CONTAINER}/cpuset.cpus", f"{POD}/a/b/cpu.max"],
)
def test_a_change_concerns_the_pod_of_its_cgroup(changed: str) -> None:
    assert cgroup_news.pod(Path(changed)) == "01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize(
    "changed",
    [
        "kubepods",
        "kubepods/burstable",
        "kubepods/cpuset.cpus",
        f"{CONTAINER}/cpuset.cpus.partition",
    ],
)
def test_what_can_take_cpus_from_other_pods_concerns_all_of_them(changed: str) -> None:
    assert cgroup_news.pod(Path(changed)) is None


def test_a_pod_whose_cgroups_have_changed_is_named_once(tmp_path: Path) -> None:
    (tmp_path / CONTAINER).mkdir(parents=True)
    runtime = ModelRuntime(here=True)
    writers = Writers(None, runtime, ModelRuntime())
    news = CgroupNews({tmp_path / "kubepods": True}, writers, lambda _cgroup: False)
    looks: list[Look] = []
    with news.followed(looks.append):
        assert news.take() is None
        news.ensure()
        assert news.take() is None, "the watch has just begun"
        assert news.take() == frozenset()
        (tmp_path / CONTAINER / "cpuset.cpus").write_text("1")
        eventually(lambda: Look.AT_ONCE in looks, "the write is seen")
        assert news.take() == frozenset({"01234567-89ab-cdef-0123-456789abcdef"})
        news.anything()
        assert news.take() is None
        runtime.delays = True
        assert news.take() is None, "what lets a start go on may come without an event"


def test_only_a_watch_that_begins_asks_for_one_more_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = CgroupNews({tmp_path / "kubepods": True}, without_runtime(), lambda _cgroup: False)

    def no_instances(*_given: object, **_named: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with news.followed(lambda _look: None):
        assert not news.ensure(), "there is no folder"
        (tmp_path / "kubepods").mkdir()
        with monkeypatch.context() as refusing:
            refusing.setattr(files, "FolderEvents", no_instances)
            assert not news.ensure(), "the kernel refuses the watch"
        assert news.ensure()
        assert not news.ensure()
