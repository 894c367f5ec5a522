"""The runtime of the embedded node asks an NRI plugin, which speaks the agent's side here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.core.names import REQUIRED_PLUGINS
from cpupool.host.cgroupfs import CgroupFS
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.node import EmbeddedNode
from cpupool.runtime.nri import session
from cpupool.runtime.nri.messages import Update
from cpupool.runtime.nri.resources import write_adjustment
from tests.nri_scripted import CPU, Plugin
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.api import nri_pb2
    from cpupool.runtime.nri.messages import Adjustment

HERE = CPUSet(os.sched_getaffinity(0))
MACHINE = CPUSet.parse("0-7") | HERE


def plugin_of(node: EmbeddedNode) -> Plugin:
    return Plugin(node.root.nri_socket, lambda: node.plugged)


@pytest.fixture
def node(folder: Path) -> Iterator[EmbeddedNode]:
    with EmulatedCgroups(folder, MACHINE, "") as home, EmbeddedNode(folder, home, nri=True) as made:
        yield made


@pytest.fixture
def plugin(node: EmbeddedNode) -> Iterator[Plugin]:
    plugin = plugin_of(node)
    yield plugin
    plugin.close()


def manifest(name: str, *containers: str) -> dict[str, Any]:
    limits = {"cpu": "2", "memory": "1Gi"}
    listed = [{"name": one, "resources": {"limits": limits}} for one in containers]
    return {"metadata": {"name": name}, "spec": {"containers": listed}}


def cpus(node: EmbeddedNode) -> dict[str, str]:
    tree = CgroupFS(node.root.cgroup, node.cgroup_root)
    return {
        one.container or "sandbox": str(tree.effective(node.path_of(one)))
        for one in node.processes()
    }


def test_a_container_starts_on_the_cpus_of_the_answer_and_every_step_is_reported(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    pod = node.run_pod(manifest("web", "main"))

    assert cpus(node) == {"sandbox": str(MACHINE), "main": str(CPU)}
    (_, main) = node.processes()
    assert main.instance.environment == {"EXCLUSIVE_CPUS": str(CPU)}
    assert main.instance.id == plugin.containers["main"]
    # The kubelet's numbers show a Guaranteed pod with two whole CPUs.
    assert plugin.seen["main"].whole_cpus == 2
    node.delete_pod(pod.uid)
    eventually(lambda: plugin.heard[-1] == ("sandbox removed", ""), "the end is told")
    assert plugin.heard == [
        ("sandbox", "web"),
        ("create", "main"),
        ("start", "main"),
        ("Started", "main"),
        ("Ended", "main"),
        ("Ended", "main"),
        ("sandbox removed", ""),
    ]


@pytest.mark.parametrize("refused_at", ["create", "start"])
def test_a_refused_container_waits_with_the_reason_until_it_may_start(
    node: EmbeddedNode, plugin: Plugin, refused_at: str
) -> None:
    setattr(plugin, {"create": "refuses", "start": "stops"}[refused_at], "late")
    pod = node.run_pod(manifest("web", "first", "late", "last"))

    why = {"create": "cpupool: no CPUs", "start": "cpupool: occupied"}[refused_at]
    assert node.held() == {pod.uid: why}
    assert cpus(node).keys() == {"sandbox", "first"}
    (body,) = node.bodies()["items"]
    late = body["status"]["containerStatuses"][1]
    assert late["state"]["waiting"] == {"reason": "CreateContainerError", "message": why}

    node.try_again()
    assert node.held() == {pod.uid: why}
    plugin.refuses = plugin.stops = ""
    node.try_again()
    assert node.held() == {}
    assert cpus(node).keys() == {"sandbox", "first", "late", "last"}
    (body,) = node.bodies()["items"]
    assert [one["restartCount"] for one in body["status"]["containerStatuses"]] == [0, 0, 0]
    assert plugin.heard.count(("create", "first")) == 1


def test_a_restart_that_is_refused_waits_and_starts_no_other_container(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    pod = node.run_pod(manifest("web", "first", "last"))
    plugin.refuses = "first"
    node.restart_container(pod.uid, "first")
    node.try_again()
    assert node.held() == {pod.uid: "cpupool: no CPUs"}
    assert cpus(node).keys() == {"sandbox", "last"}
    plugin.refuses = ""
    node.try_again()
    assert node.held() == {}
    assert cpus(node).keys() == {"sandbox", "first", "last"}
    assert plugin.heard.count(("create", "last")) == 1


def test_the_plugin_moves_other_containers_with_an_answer_and_by_itself(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    node.run_pod(manifest("web", "main"))
    main = plugin.containers["main"]
    plugin.updates = [Update(main, CPUSet.parse("6-7"))]
    node.run_pod(manifest("other", "second"))
    assert cpus(node)["main"] == "6-7"

    plugin.updates = []
    plugin.update(Update(main, CPUSet.parse("4")), Update(main, CPUSet()))
    eventually(lambda: cpus(node)["main"] == "4", "the container is moved")


def test_an_update_of_a_container_that_has_gone_fails(node: EmbeddedNode, plugin: Plugin) -> None:
    pod = node.run_pod(manifest("web", "main"))
    gone = plugin.containers["main"]
    node.delete_pod(pod.uid)
    plugin.update(Update(gone, CPU))
    eventually(lambda: bool(plugin.updated), "the update is answered")
    assert plugin.updated[0].failed == (gone,)


def test_without_a_plugin_nothing_is_asked_and_the_next_one_learns_what_runs(
    node: EmbeddedNode,
) -> None:
    node.run_pod(manifest("web", "main"))
    assert cpus(node)["main"] == str(MACHINE)
    first = plugin_of(node)
    assert first.running == ["main"]
    first.close()
    eventually(lambda: not node.plugged, "the plugin has gone")
    node.run_pod(manifest("other", "second"))
    assert cpus(node)["second"] == str(MACHINE)
    second = plugin_of(node)
    assert second.running == ["main", "second"]
    second.close()


def test_a_mount_of_the_plugin_is_found_at_its_place_on_the_node(
    node: EmbeddedNode, plugin: Plugin, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_mount(adjustment: Adjustment) -> nri_pb2.ContainerAdjustment:
        made = write_adjustment(adjustment)
        made.mounts.add(destination="/run/own", type="bind", source="/run/of/main")
        return made

    monkeypatch.setattr(session, "write_adjustment", with_mount)
    pod = node.run_pod(manifest("web", "main"))
    source = folder / "run/of/main"
    assert node.held() == {pod.uid: f"error mounting {source}: no such file or directory"}
    assert cpus(node).keys() == {"sandbox"}
    assert plugin.heard[-1] == ("Ended", "main")

    source.mkdir(parents=True)
    node.try_again()
    (_, main) = node.processes()
    assert main.instance.mounts == {"/run/own": source}


def test_a_pod_that_requires_the_plugin_waits_for_it(node: EmbeddedNode) -> None:
    body = manifest("web", "main")
    body["metadata"]["annotations"] = {REQUIRED_PLUGINS: '["cpupool"]'}
    pod = node.run_pod(body)
    why = 'validation error: required plugins ["cpupool"] not present'
    assert node.held() == {pod.uid: why}
    leaving = plugin_of(node)
    leaving.leaves = "main"
    node.try_again()
    assert node.held() == {pod.uid: why}
    leaving.close()
    plugin = plugin_of(node)
    node.try_again()
    assert cpus(node)["main"] == str(CPU)
    plugin.close()


def test_a_runtime_that_restarts_keeps_its_containers_and_hangs_up(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    node.run_pod(manifest("web", "main"))
    node.restart_runtime()
    eventually(lambda: not node.plugged, "the plugin has gone")
    node.restart_runtime()
    again = plugin_of(node)
    assert again.running == ["main"]
    assert cpus(node)["main"] == str(CPU)

    again.leaves, again.leaving = "second", node.restart_runtime
    pod = node.run_pod(manifest("other", "second"))
    assert node.held() == {pod.uid: "the container runtime has ended"}
    again.close()
    node.try_again()
    assert cpus(node)["second"] == str(MACHINE)


def test_a_plugin_that_leaves_in_the_middle_does_not_keep_a_container_from_starting(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    plugin.leaves = "main"
    node.run_pod(manifest("web", "main"))
    assert cpus(node)["main"] == str(MACHINE)
    assert not node.plugged


def test_a_socket_that_cannot_be_made_is_an_error_with_its_path(folder: Path) -> None:
    deep = folder / ("x" * 100)
    deep.mkdir()
    with (
        EmulatedCgroups(deep, HERE, "") as home,
        pytest.raises(HostFileError, match="no socket can be made here"),
        EmbeddedNode(deep, home, nri=True),
    ):
        pass
