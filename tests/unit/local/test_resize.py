"""Pods of the embedded node are resized in place, as the kubelet does it with the policy none."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.api import nri_pb2
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostError, ManifestError
from cpupool.host.cgroupfs import CgroupFS
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.node import EmbeddedNode
from cpupool.local.nri import NRIServer, PluginRefusal
from cpupool.runtime.nri.messages import Update
from tests.nri_scripted import Plugin
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cpupool.core.workloads import ContainerID, Pod

MACHINE = CPUSet.parse("0-7")
MANIFEST_ERRORS = {
    "a container that is not there": ({"other": "3"}, "no container 'other' can be resized"),
    "an init container": ({"setup": "3"}, "no container 'setup' can be resized"),
    "no quantity": ({"main": "many"}, "many"),
    "another class": ({"part": "3"}, "must not change the QoS class"),
}


@pytest.fixture
def node(folder: Path) -> Iterator[EmbeddedNode]:
    with EmulatedCgroups(folder, MACHINE, "") as home, EmbeddedNode(folder, home, nri=True) as made:
        yield made


@pytest.fixture
def plugin(node: EmbeddedNode) -> Iterator[Plugin]:
    plugin = Plugin(node.root.nri_socket, lambda: node.plugged)
    yield plugin
    plugin.close()


def container(name: str, cpu: str, **fields: Any) -> dict[str, Any]:
    limits = {"cpu": cpu, "memory": "1Gi"}
    return {"name": name, "resources": {"limits": limits, "requests": limits}, **fields}


def run(node: EmbeddedNode, pod: str, **cpus: str) -> Pod:
    listed = [container(name, cpu) for name, cpu in cpus.items()]
    return node.run_pod({"metadata": {"name": pod}, "spec": {"containers": listed}})


def status(node: EmbeddedNode, pod: Pod) -> Mapping[str, Any]:
    (body,) = (one for one in node.bodies()["items"] if one["metadata"]["uid"] == pod.uid)
    found: Mapping[str, Any] = body["status"]
    return found


def conditions(node: EmbeddedNode, pod: Pod) -> list[tuple[str, str, str]]:
    """Give type, reason and message of each condition."""
    return [
        (one["type"], one.get("reason", ""), one.get("message", ""))
        for one in status(node, pod).get("conditions", ())
    ]


def amounts(node: EmbeddedNode, pod: Pod) -> dict[str, tuple[str, str]]:
    """Give container → the cpu that the kubelet has taken, and that the runtime has."""
    return {
        one["name"]: (one["allocatedResources"]["cpu"], one["resources"]["requests"]["cpu"])
        for one in status(node, pod)["containerStatuses"]
    }


def cpus(node: EmbeddedNode) -> dict[str, str]:
    tree = CgroupFS(node.root.cgroup, node.cgroup_root)
    return {
        one.container: str(tree.effective(node.path_of(one)))
        for one in node.processes()
        if one.container
    }


def test_a_container_is_resized_by_the_answer_of_the_plugin(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    pod = run(node, "web", main="2")
    assert amounts(node, pod) == {"main": ("2", "2")}
    plugin.answers = lambda one: [Update(one, CPUSet.parse("2-5"))]

    resized = node.resize(pod.uid, {"main": "4"})

    assert [one.whole_cpus for one in resized.containers] == [4]
    assert cpus(node) == {"main": "2-5"}
    assert amounts(node, pod) == {"main": ("4", "4")}
    (found,) = status(node, pod)["containerStatuses"]
    assert found["resources"]["limits"] == {"cpu": "4", "memory": "1Gi"}
    assert found["restartCount"] == 0
    assert (conditions(node, pod), node.resizing()) == ([], {})
    # The plugin is asked with the container as it was.
    assert plugin.seen["main"].whole_cpus == 2
    assert plugin.heard.count(("update", "main")) == 1


def test_the_runtime_keeps_the_new_shares_and_cpus_for_a_plugin_that_comes_later(
    node: EmbeddedNode,
) -> None:
    pod = run(node, "web", main="2")
    node.resize(pod.uid, {"main": "4"})
    assert amounts(node, pod) == {"main": ("4", "4")}
    assert cpus(node) == {"main": "0-7"}
    later = Plugin(node.root.nri_socket, lambda: node.plugged)
    assert later.seen["main"].whole_cpus == 4
    later.close()


def test_within_a_pod_decreases_come_first_and_what_stays_is_not_asked_for(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    pod = run(node, "web", up="1", stays="1", down="2", least="3", more="1")
    node.resize(pod.uid, {"up": "2", "stays": "1000m", "down": "1", "least": "2", "more": "3"})
    asked = [name for event, name in plugin.heard if event == "update"]
    # The kubelet puts each decrease before all that it has found.
    assert asked == ["least", "down", "up", "more"]


def test_an_error_ends_a_resize_and_the_next_look_goes_on_with_the_rest(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    pod = run(node, "web", first="1", second="1", third="1")
    before = cpus(node)
    plugin.keeps = "second"
    node.resize(pod.uid, {"first": "2", "second": "2", "third": "2"})

    why = "cpupool: no CPUs to grow"
    assert conditions(node, pod) == [("PodResizeInProgress", "Error", why)]
    assert node.resizing() == {pod.uid: why}
    assert amounts(node, pod) == {"first": ("2", "2"), "second": ("2", "1"), "third": ("2", "1")}
    assert cpus(node) == before
    node.try_again()
    assert conditions(node, pod) == [("PodResizeInProgress", "Error", why)]

    plugin.keeps, plugin.heard = "", []
    plugin.answers = lambda one: [Update(one, CPUSet.parse("6-7"))]
    node.try_again()
    assert plugin.heard == [("update", "second"), ("update", "third")]
    assert (conditions(node, pod), node.resizing()) == ([], {})
    assert cpus(node) == {**before, "second": "6-7", "third": "6-7"}
    node.try_again()
    assert len(plugin.heard) == 2


def test_a_refused_resize_that_is_taken_back_is_over(node: EmbeddedNode, plugin: Plugin) -> None:
    pod = run(node, "web", main="2")
    plugin.keeps = "main"
    node.resize(pod.uid, {"main": "4"})
    node.resize(pod.uid, {"main": "2"})
    assert (conditions(node, pod), node.resizing()) == ([], {})
    assert amounts(node, pod) == {"main": ("2", "2")}


def test_a_container_that_starts_again_has_what_the_kubelet_has_taken(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    pod = run(node, "web", main="2")
    plugin.keeps = "main"
    node.resize(pod.uid, {"main": "4"})
    node.restart_container(pod.uid, "main")
    assert plugin.seen["main"].whole_cpus == 4
    assert (conditions(node, pod), node.resizing()) == ([], {})


@pytest.mark.parametrize(
    ("cpu", "reason", "message"),
    [
        (
            "7",
            "Infeasible",
            "Node didn't have enough capacity: cpu, requested: 7000, capacity: 6000",
        ),
        (
            "5",
            "Deferred",
            "Node didn't have enough resource: cpu, requested: 5000, used: 3000, capacity: 6000",
        ),
    ],
)
def test_what_the_node_does_not_have_is_pending_and_the_runtime_is_not_asked(
    node: EmbeddedNode, plugin: Plugin, cpu: str, reason: str, message: str
) -> None:
    node.kubelet.allocatable_milli = 6000
    other = run(node, "other", main="3")
    pod = run(node, "web", main="2")

    wanted = node.resize(pod.uid, {"main": cpu})

    assert wanted.containers[0].whole_cpus == int(cpu)
    assert conditions(node, pod) == [("PodResizePending", reason, message)]
    assert node.resizing() == {pod.uid: message}
    assert amounts(node, pod) == {"main": ("2", "2")}
    # The kubelet starts the container with what it has taken.
    node.restart_container(pod.uid, "main")
    assert plugin.seen["main"].whole_cpus == 2
    node.delete_pod(other.uid)
    node.try_again()
    feasible = reason == "Deferred"
    assert bool(conditions(node, pod)) != feasible
    assert plugin.heard.count(("update", "main")) == feasible


def test_a_pod_counts_with_the_cpu_that_the_kubelet_has_taken_for_it(node: EmbeddedNode) -> None:
    node.kubelet.allocatable_milli = 6000
    one, other = run(node, "one", main="3"), run(node, "other", main="3")
    node.resize(one.uid, {"main": "4"})
    node.resize(other.uid, {"main": "2"})
    assert [reason for _, reason, _ in conditions(node, one)] == ["Deferred"]
    node.try_again()
    assert conditions(node, one) == []
    node.resize(other.uid, {"main": "3"})
    assert [reason for _, reason, _ in conditions(node, other)] == ["Deferred"]
    node.resize(other.uid, {"main": "2"})
    assert conditions(node, other) == []


def test_an_edit_in_the_api_server_alone_changes_nothing_until_the_kubelet_looks(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    pod = run(node, "web", main="2")
    listed = {"containers": [container("main", "4")]}
    node.edit_pod(pod.uid, lambda body: {**body, "spec": listed})
    assert amounts(node, pod) == {"main": ("2", "2")}
    assert ("update", "main") not in plugin.heard
    node.try_again()
    assert amounts(node, pod) == {"main": ("4", "4")}


@pytest.mark.parametrize(("asked", "why"), MANIFEST_ERRORS.values(), ids=list(MANIFEST_ERRORS))
def test_what_the_api_server_does_not_take_changes_nothing(
    node: EmbeddedNode, asked: dict[str, str], why: str
) -> None:
    # Only its cpu request keeps the pod from the class Guaranteed.
    part = container("part", "3")
    part["resources"]["requests"] = {"cpu": "1", "memory": "1Gi"}
    containers, setup = [container("main", "2"), part], [container("setup", "1")]
    spec = {"containers": containers, "initContainers": setup}
    pod = node.run_pod({"metadata": {"name": "web"}, "spec": spec})
    before = node.bodies()
    with pytest.raises(ManifestError, match=why):
        node.resize(pod.uid, asked)
    assert node.bodies() == before


def test_a_plugin_that_leaves_in_the_middle_keeps_no_resize_from_being_carried_out(
    node: EmbeddedNode, plugin: Plugin
) -> None:
    pod = run(node, "web", main="2")
    plugin.leaves = "main"
    node.resize(pod.uid, {"main": "4"})
    assert conditions(node, pod) == []
    assert amounts(node, pod) == {"main": ("4", "4")}


class Written:
    """What a runtime has set, in order; the containers in `failing` cannot be set."""

    def __init__(self, *failing: str) -> None:
        self.cpus: list[tuple[str, str]] = []
        self._failing = failing

    def __call__(self, container: str, cpus: CPUSet) -> bool:
        self.cpus.append((container, str(cpus)))
        return container not in self._failing


@contextmanager
def serving(folder: Path, written: Written) -> Iterator[tuple[NRIServer, Plugin]]:
    with NRIServer(folder / "nri.sock", written) as server:
        server.sandbox_runs(nri_pb2.PodSandbox(id="s"))
        labels = {f"io.kubernetes.pod.{key}": key for key in ("uid", "namespace", "name")}
        for name in ("own", "near"):
            one = nri_pb2.Container(id=name, pod_sandbox_id="s", name=name)
            one.labels.update({**labels, "io.kubernetes.container.name": name})
            server.started(one)
        plugin = Plugin(folder / "nri.sock", lambda: server.connected)
        yield server, plugin
        plugin.close()


def shares(cpu: int) -> nri_pb2.LinuxResources:
    resources = nri_pb2.LinuxResources()
    resources.cpu.shares.value = 1024 * cpu
    return resources


def own_first(own: ContainerID) -> list[Update]:
    near = type(own)("near")
    return [Update(own, CPUSet.parse("2-3")), Update(near, CPUSet.parse("0-1"))]


@pytest.mark.parametrize("failing", ["", "near"])
def test_other_containers_are_updated_before_the_container_itself(
    folder: Path, failing: str
) -> None:
    written = Written(failing)
    with serving(folder, written) as (server, plugin):
        plugin.answers = own_first
        server.update("own", shares(2))
        assert written.cpus == [("near", "0-1"), ("own", "2-3")]


def test_cpus_of_its_own_that_cannot_be_set_are_an_error_and_the_request_stays(
    folder: Path,
) -> None:
    with serving(folder, Written("own")) as (server, plugin):
        plugin.answers = own_first
        with pytest.raises(HostError, match="CPUs 2-3 of container own cannot be set"):
            server.update("own", shares(2))
        plugin.keeps = "own"
        with pytest.raises(PluginRefusal, match="cpupool: no CPUs to grow"):
            server.update("own", shares(3))
        plugin.close()
        eventually(lambda: not server.connected, "the plugin has gone")
        again = Plugin(folder / "nri.sock", lambda: server.connected)
        assert again.seen["own"].whole_cpus == 0
        again.close()
