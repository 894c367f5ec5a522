from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, HostFileError, RemoteProtocolError
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerKind
from cpupool.enforce.sweep import SweepReport
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager import offers
from cpupool.manager.manager import Manager
from tests import builders
from tests.cgroups import KernelModel
from tests.runtimes import ModelRuntime, reported
from tests.setters import EVERYTHING, MACHINE, Node, Source, ids, owner_on_2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.cgroups import FoundContainer


def test_an_init_container_is_known_from_the_checkpoint() -> None:
    node = Node()
    node.run("owner", builders.container("main", ContainerKind.INIT, exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("4")}}

    node.setter.sweep()

    assert node.cpus("owner") == "4"
    assert "podresources" not in node.source.asked, "the checkpoint said it all"


def test_the_checkpoint_serves_while_the_kubelet_is_away() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("4")}}
    node.source.failing["podresources"] = RemoteProtocolError("the kubelet does not answer")

    node.setter.sweep()

    assert node.cpus("owner") == "4"


@pytest.mark.parametrize(
    "blind",
    [
        pytest.param({"pods": HostFileError("pods.json", "gone", "write it")}, id="no pods"),
        pytest.param(
            {
                "podresources": RemoteProtocolError("the kubelet does not answer"),
                "checkpoint": HostFileError("checkpoint", "gone", "wait"),
            },
            id="no word on devices",
        ),
    ],
)
def test_nothing_is_touched_before_the_facts_have_been_heard_of_once(
    blind: dict[str, CPUPoolError], caplog: pytest.LogCaptureFixture
) -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.run("plain")
    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.source.failing = dict(blind)

    with caplog.at_level(logging.WARNING):
        node.setter.sweep()
        node.setter.sweep()

    assert (node.cpus("owner"), node.cpus("plain")) == (EVERYTHING, EVERYTHING)
    assert len(caplog.records) == len(blind), "each source is complained about once"

    node.source.failing.clear()
    node.now_s += 1
    node.setter.sweep()
    assert (node.cpus("owner"), node.cpus("plain")) == ("2", "1")


def test_nothing_is_touched_before_the_first_complete_list_of_pods() -> None:
    node = Node(Source(listed=None))
    node.run("stranger", listed=False)

    node.setter.sweep()

    assert node.cpus("stranger") == EVERYTHING


def test_nothing_is_touched_on_a_node_without_pools() -> None:
    node = Node()
    node.manager.reconfigure(NodePools(), MACHINE.topology())
    node.run("plain")

    assert node.setter.sweep() == SweepReport(waiting_for="a pool file for this node")
    assert node.cpus("plain") == EVERYTHING


def test_devices_of_pools_that_are_gone_can_be_listed_once_their_holders_are_known() -> None:
    node = Node(Source(listed=None))
    node.manager.reconfigure(NodePools(), MACHINE.topology())
    node.setter.sweep()
    was_ready = node.setter.ready

    node.source.listed = []
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()
    assert (was_ready, node.setter.ready) == (False, True)
    assert [pool.name for pool in node.manager.advertised()] == ["exclusive_a"]


def test_an_owner_is_left_alone_on_its_core_after_the_last_pool_has_gone() -> None:
    node = owner_on_2()
    node.manager.reconfigure(NodePools(), MACHINE.topology())
    node.run("late")
    node.kernel.write(node.path("owner"), CPUSet.of(5))
    node.setter.sweep()
    assert {name: node.cpus(name) for name in ("owner", "plain", "late")} == {
        "owner": "2",
        "plain": "0-1,4-7",
        "late": "0-1,4-7",
    }

    assert node.source.listed
    del node.source.listed[0]
    node.kernel.remove("kubepods/podowner-uid")
    node.run("last")
    assert node.setter.sweep().waiting_for == "a pool file for this node"
    assert node.cpus("last") == EVERYTHING


def test_no_container_is_moved_before_the_pools_are_known() -> None:
    before = owner_on_2()
    before.run("sharer", builders.container(shared_a=1))
    before.source.saved["sharer"] = {"shared_a": ids("0")}
    before.setter.sweep()
    node = Node(source=before.source, kernel=before.kernel, manager=Manager(Names()), pools=None)
    node.manager.update_topology(MACHINE.topology())

    assert node.setter.sweep().repairs == ()
    assert node.cpus("sharer") == "0"


def test_a_container_whose_devices_come_late_is_confined_reported_and_then_moved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))

    with caplog.at_level(logging.WARNING):
        node.setter.sweep()
        node.setter.sweep()
    assert node.cpus("owner") == "1"
    assert caplog.text.count("container confined to the default pool pod=default/owner") == 1

    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.now_s += 0.1
    node.setter.sweep()
    assert node.cpus("owner") == "2"


def test_the_kubelet_is_asked_ever_more_seldom_about_the_same_devices() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    for _ in range(6000):
        node.setter.sweep()
        node.now_s += 0.02

    # 120 s in steps of 20 ms: eight times in the first 18.8 s, then 30, 60 and 90 s later.
    assert node.source.asked.count("podresources") == 11

    node.run("second", builders.container(exclusive_a=1))
    node.source.asked.clear()
    node.setter.sweep()
    assert "podresources" in node.source.asked, "something new is asked about at once"


def test_a_pod_that_is_listed_no_longer_keeps_its_cpus_while_its_cgroup_is_there() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.live = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()

    node.source.listed = []
    node.setter.sweep()
    assert node.cpus("owner") == "2"

    node.kernel.remove("kubepods/podowner-uid")
    node.setter.sweep()
    assert builders.owned(node.manager) == {}


def test_a_list_that_has_lost_every_pod_moves_no_container() -> None:
    node = owner_on_2()
    node.run("sharer", builders.container(shared_a=1))
    node.source.saved["sharer"] = {"shared_a": ids("0")}
    node.setter.sweep()

    listed, node.source.listed = node.source.listed, []
    assert node.setter.sweep().repairs == ()
    node.source.listed = listed
    assert node.setter.sweep().repairs == ()
    assert node.cpus("sharer") == "0"


def test_a_kubelet_that_names_no_pod_has_not_answered_yet() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.failing["checkpoint"] = HostFileError("checkpoint", "gone", "wait")

    assert node.setter.sweep().waiting_for == "the kubelet's records of its devices"
    assert node.cpus("owner") == EVERYTHING
    assert not node.setter.ready


def test_an_unreadable_tree_is_reported_and_does_not_end_the_role(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unreadable(KernelModel):
        def containers(self, known: object = None) -> Iterator[FoundContainer]:
            raise HostFileError("kubepods", "Permission denied", "run as root")

    node = Node(kernel=Unreadable(CgroupVersion.V1, {"kubepods": EVERYTHING}, EVERYTHING))
    with caplog.at_level(logging.WARNING):
        assert node.setter.sweep() == SweepReport(waiting_for="the cgroups")
    assert "run as root" in caplog.text


def test_pods_without_any_cgroup_are_wondered_about_once(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.source.listed = [builders.pod("plain")]

    with caplog.at_level(logging.WARNING):
        node.setter.sweep()
        node.setter.sweep()

    assert caplog.text.count("--cgroup-root") == 1


def test_a_container_that_starts_again_is_put_right_at_once() -> None:
    node = owner_on_2()
    node.kernel.remove(node.path("owner"))
    again = "kubepods/podowner-uid/main-2-id"
    node.kernel.make(again, EVERYTHING)
    node.setter.sweep()
    assert str(node.kernel.effective(again)) == "1", "not reported yet: on no exclusive CPU"

    assert node.source.listed
    pod = node.source.listed[0]
    container = replace(pod.containers[0], id=ContainerID("main-2-id"))
    node.source.listed[0] = replace(pod, containers=(container,))
    node.source.asked.clear()
    node.setter.sweep()

    assert str(node.kernel.effective(again)) == "2"
    assert node.source.asked == ["pods"], "its devices are those that it had"


def test_a_finished_pod_owns_nothing_though_its_cgroup_is_there() -> None:
    node = owner_on_2()
    assert node.source.listed
    node.source.listed[0] = replace(node.source.listed[0], finished=True)
    node.setter.sweep()
    assert builders.owned(node.manager) == {}
    assert node.events.pods == []


def test_devices_of_pods_that_are_not_listed_are_kept_for_a_minute() -> None:
    node = Node()
    node.run("coming", builders.container(exclusive_a=1), listed=False)
    node.source.saved = {"coming": {"exclusive_a": ids("2")}, "gone": {"exclusive_a": ids("4")}}
    node.setter.sweep()
    assert builders.promised(node.manager) == {"exclusive_a": CPUSet.of(2)}

    node.manager.allocate("exclusive_a", ["4"])
    node.now_s += 59
    node.setter.sweep()
    assert offers.held_ids(node.manager.snapshot().facts) == {"exclusive_a": {"2", "4"}}
    node.now_s += 1
    node.setter.sweep()
    assert offers.held_ids(node.manager.snapshot().facts) == {"exclusive_a": {"4"}}
    node.now_s += 59
    node.setter.sweep()
    assert offers.held_ids(node.manager.snapshot().facts) == {}


def test_the_runtime_is_asked_once_what_was_chosen_for_containers_that_want_own_cpus() -> None:
    static = CPUManager("static", reserved=CPUSet.of(0))
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=static)
    node = Node(pools=pools, cri=ModelRuntime(here=True))
    node.run("own", builders.container(cpu=1000))
    known = reported("own-uid")
    node.cri.containers = (replace(known, chosen=CPUSet.of(5)), reported("plain-uid", "plain"))
    node.setter.sweep()
    assert node.cpus("own") == "5"

    # From here on this agent decides.
    node.cri.containers = (replace(known, chosen=CPUSet.of(6)),)
    node.setter.sweep()
    assert node.cpus("own") == "5"


def test_a_runtime_that_does_not_say_what_was_chosen_holds_up_no_sweep(
    caplog: pytest.LogCaptureFixture,
) -> None:
    static = CPUManager("static", reserved=CPUSet.of(0))
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=static)
    node = Node(pools=pools, cri=ModelRuntime(here=True, silent=True))
    node.run("own", builders.container(cpu=1000))
    node.setter.sweep()
    assert "the container runtime does not answer" in caplog.text
    assert builders.owned(node.manager)["own-uid"]
