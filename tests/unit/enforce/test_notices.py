from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import MemoryNodes
from cpupool.core.cpu_manager import CPUManager, Eligible
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.enforce.notices import Notice, Notices, about_placement
from cpupool.manager.manager import Manager
from tests import builders
from tests.events import Heard
from tests.machines import MACHINES
from tests.memory import having

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

POD = builders.pod("web")
NOTICE = Notice("CPUOffline", "container lost CPUs", POD, "main", "CPU 2 is offline", "wait")
KEY = (("web-uid", ContainerID("main-id")), "CPUOffline")


def test_a_notice_is_said_once_and_again_when_it_changes_or_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = Heard()
    notices = Notices(heard)
    other = replace(NOTICE, why="CPU 3 is offline")
    same = replace(NOTICE, pod=replace(POD, finished=True))
    with caplog.at_level(logging.WARNING):
        for told in ({KEY: NOTICE}, {KEY: same}, {KEY: other}, {}, {KEY: other}):
            notices.publish(told, 0.0)

    assert [message for _, _, message in heard.pods] == [
        "container main: CPU 2 is offline; wait",
        "container main: CPU 3 is offline; wait",
        "container main: CPU 3 is offline; wait",
    ]
    assert [record.getMessage() for record in caplog.records][:1] == [
        'container lost CPUs pod=default/web container=main reason="CPU 2 is offline"'
    ]
    assert len(caplog.records) == 3


def test_a_notice_that_does_not_last_is_no_event() -> None:
    heard = Heard()
    notices = Notices(heard)
    slow = replace(NOTICE, lasts_s=2.0)
    notices.publish({KEY: slow}, 100.0)
    assert (notices.due_s, heard.pods) == (102.0, [])
    notices.publish({}, 101.0)
    assert notices.due_s == math.inf
    notices.publish({KEY: slow}, 102.0)
    assert heard.pods == []
    notices.publish({KEY: slow}, 104.0)
    assert len(heard.pods) == 1
    assert notices.due_s == math.inf


@pytest.mark.parametrize("eligible", Eligible)
def test_a_container_with_pools_and_whole_cpus_has_its_pools_alone(eligible: Eligible) -> None:
    main = builders.container(exclusive_a=1, cpu=2000)
    if eligible is Eligible.CONTAINER:
        main = replace(main, whole_cpus=0, equal_cpus=2)
    pod = builders.pod("web", main)
    node = Manager()
    pools = NodePools.of(
        Pool.named("exclusive_a", "8-9"),
        Pool.named("default", "0-7"),
        cpu_manager=CPUManager("static", reserved=1, eligible=eligible),
    )
    node.reconfigure(pools, MACHINES["arm_no_smt"].topology())
    node.observe(pods=[pod])
    node.accept(builders.given(pod, exclusive_a="8"))
    ((_, event),) = about_placement(node.snapshot().resolution)
    assert event.event == "CPURequestOfPoolsOnly"
    assert event.why == (
        "it requests exclusive_a, so that the CPU manager policy static gives it none for its cpu"
        " request of 2"
    )


def ignored(policy: str, pod: Pod) -> dict[str, str]:
    """Return the Events about a pod on a node where a notice is at most 5 seconds: reason → why."""
    node = Manager()
    manager = CPUManager(policy, reserved=1, max_notice_s=5)
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=manager)
    node.reconfigure(pools, MACHINES["arm_no_smt"].topology())
    node.observe(pods=[pod])
    return {found.event: found.why for _, found in about_placement(node.snapshot().resolution)}


def test_words_about_changes_of_cpus_that_the_node_does_not_follow_are_told() -> None:
    both = replace(POD, misread=("cpu-notice-seconds", "cpu-moves"))
    longest = (
        "its containers know 5 s before they lose CPUs, the most on this node: the value of its"
        " annotation cpu-notice-seconds is no whole number from 0 to 5"
    )

    assert ignored("static", both) == {}
    assert ignored("dynamic", replace(POD, notice_s=5)) == {}
    assert ignored("dynamic", replace(POD, notice_s=6)) == {"CPUNoticeIgnored": longest}
    assert ignored("dynamic", both) == {
        "CPUNoticeIgnored": longest,
        "CPUMovesIgnored": (
            "its containers keep the CPUs that they were created with: the value of its annotation"
            " cpu-moves is none of never, same-l3, same-numa, any"
        ),
    }


def test_a_word_about_migration_that_is_neither_yes_nor_no_is_told() -> None:
    told: list[str] = []
    for word in (False, True, None):
        node = Manager()
        node.reconfigure(
            NodePools.of(Pool.named("default", "0-7")), MACHINES["arm_no_smt"].topology()
        )
        node.observe(pods=[replace(builders.pod("web"), memory_migrates=word)])
        resolution = node.snapshot().resolution
        assert not list(about_placement(resolution))
        wished = having(resolution, {"web": MemoryNodes(CPUSet.of(1))})
        told += [notice.why for _, notice in about_placement(wished)]
    (why,) = told
    assert why.endswith('the value of its annotation memory-migrates is neither "true" nor "false"')
