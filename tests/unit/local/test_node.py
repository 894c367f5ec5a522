from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ManifestError, PodRefused
from cpupool.core.names import Names
from cpupool.core.workloads import PodUID
from cpupool.kube import descriptions
from cpupool.kubelet.podresources import PodResources
from cpupool.local.cgroups import EmulatedCgroups
from cpupool.local.node import SANDBOX, EmbeddedNode
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.core.workloads import Pod

HERE = CPUSet(os.sched_getaffinity(0))
NAMES = Names()


@pytest.fixture
def node(folder: Path) -> Iterator[EmbeddedNode]:
    with EmulatedCgroups(folder, HERE, "") as home, EmbeddedNode(folder, home) as made:
        yield made


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"}], **spec}}


def running(node: EmbeddedNode) -> list[str]:
    return [process.container for process in node.processes()]


def statuses(node: EmbeddedNode, kind: str = "containerStatuses") -> list[Mapping[str, Any]]:
    (body,) = node.bodies()["items"]
    found: list[Mapping[str, Any]] = body["status"][kind]
    return found


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_every_container_is_a_process_in_a_cgroup_named_after_it(node: EmbeddedNode) -> None:
    pod = node.run_pod(manifest("web"))
    sandbox, main = node.processes()
    assert (sandbox.container, main.container) == (SANDBOX, "main")
    assert re.fullmatch(r"[0-9a-f]{64}", main.instance.id)
    assert main.instance.id == pod.containers[0].id
    assert main.instance.cgroup == f"kubepods/besteffort/pod{pod.uid}/{main.instance.id}"
    for process in (sandbox, main):
        procs = node.root.cgroup / "cpuset" / process.instance.cgroup / "cgroup.procs"
        assert procs.read_text().split() == [str(process.instance.pid)]
        assert process.cpus_allowed() == HERE


@pytest.mark.parametrize(
    ("resources", "level"),
    [
        ({}, "kubepods/besteffort/"),
        ({"limits": {"cpu": "1"}}, "kubepods/burstable/"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "kubepods/"),
    ],
)
def test_the_qos_class_decides_on_the_place_in_the_tree(
    node: EmbeddedNode, resources: dict[str, Any], level: str
) -> None:
    pod = node.run_pod(manifest("web", containers=[{"name": "main", "resources": resources}]))
    assert {
        process.instance.cgroup.partition("pod" + pod.uid)[0] for process in node.processes()
    } == {level}


def test_a_static_pod_lies_under_its_config_hash(node: EmbeddedNode) -> None:
    annotations = {"kubernetes.io/config.hash": "f00d", "kubernetes.io/config.mirror": "f00d"}
    body = manifest("web")
    body["metadata"]["annotations"] = annotations
    pod = node.run_pod(body)
    assert node.processes()[0].instance.cgroup.split("/")[2] == "podf00d"
    node.delete_pod(pod.uid)
    assert node.processes() == ()


def test_a_process_has_the_variables_of_its_container_and_no_other(node: EmbeddedNode) -> None:
    variables = [{"name": "A", "value": "1"}, {"name": "B", "value": "two words"}]
    node.run_pod(manifest("web", containers=[{"name": "main", "env": variables}]))
    pid = node.processes()[1].instance.pid
    # The kernel closes the pipe that tells of a good exec before it has put the variables in place.
    environ = Path(f"/proc/{pid}/environ")
    eventually(lambda: environ.read_bytes() != b"", "the variables are in place")
    entries = environ.read_bytes().split(b"\0")
    assert {entry for entry in entries if entry[:2] in (b"A=", b"B=")} == {b"A=1", b"B=two words"}
    assert not [entry for entry in entries if entry.startswith(b"PYTEST")]


def test_init_containers_run_one_after_the_other_and_sidecars_stay(node: EmbeddedNode) -> None:
    seen: list[tuple[str, list[str]]] = []

    def during_init(pod: Pod, name: str) -> None:
        assert {one.name: one.id for one in pod.containers}[name] is not None
        seen.append((name, running(node)))

    setup = [{"name": "one"}, {"name": "proxy", "restartPolicy": "Always"}, {"name": "two"}]
    node.run_pod(manifest("web", initContainers=setup), during_init)
    assert seen == [("one", [SANDBOX, "one"]), ("two", [SANDBOX, "proxy", "two"])]
    assert running(node) == [SANDBOX, "proxy", "main"]
    states = {one["name"]: set(one["state"]) for one in statuses(node, "initContainerStatuses")}
    assert states == {"one": {"terminated"}, "proxy": {"running"}, "two": {"terminated"}}


def test_a_restarted_container_is_a_new_process_under_a_new_id(node: EmbeddedNode) -> None:
    pod = node.run_pod(manifest("web"))
    _, before = node.processes()
    node.restart_container(pod.uid, "main")
    _, after = node.processes()
    assert after.instance.id != before.instance.id
    assert not alive(before.instance.pid)
    assert not (node.root.cgroup / "cpuset" / before.instance.cgroup).exists()
    (status,) = statuses(node)
    assert status["restartCount"] == 1
    assert status["containerID"] == f"containerd://{after.instance.id}"
    last = status["lastState"]["terminated"]
    assert last["containerID"] == f"containerd://{before.instance.id}"
    assert (last["exitCode"], last["reason"]) == (1, "Error")
    assert node.pods()[0].containers[0].id == after.instance.id


def test_an_ephemeral_container_joins_a_running_pod(node: EmbeddedNode) -> None:
    pod = node.run_pod(manifest("web"))
    node.add_ephemeral(pod.uid, {"name": "debug"})
    assert running(node) == [SANDBOX, "main", "debug"]
    assert [one["name"] for one in statuses(node, "ephemeralContainerStatuses")] == ["debug"]
    with pytest.raises(ManifestError, match="is the name of two containers"):
        node.add_ephemeral(pod.uid, {"name": "debug"})
    with pytest.raises(ManifestError, match="name"):
        node.add_ephemeral(pod.uid, {"image": "busybox"})
    assert running(node) == [SANDBOX, "main", "debug"]


def test_a_finished_pod_stays_listed_without_processes(node: EmbeddedNode) -> None:
    pod = node.run_pod(manifest("web"))
    node.finish_pod(pod.uid)
    assert node.processes() == ()
    assert [one.finished for one in node.pods()] == [True]
    assert node.bodies()["items"][0]["status"]["phase"] == "Succeeded"
    assert not (node.root.cgroup / "cpuset" / f"kubepods/besteffort/pod{pod.uid}").exists()
    node.delete_pod(pod.uid)
    assert node.pods() == ()


def test_a_finished_pod_is_not_admitted_again(node: EmbeddedNode) -> None:
    ended = node.run_pod(manifest("ended"))
    node.run_pod(manifest("web"))
    node.finish_pod(ended.uid)
    assert node.admit_again() == {}
    listed = PodResources(node.root.podresources_socket).by_pod_name()
    assert list(listed) == [("default", "web")]


def test_a_deleted_pod_leaves_nothing(node: EmbeddedNode) -> None:
    kept = node.run_pod(manifest("kept"))
    pod = node.run_pod(manifest("web"))
    pids = [process.instance.pid for process in node.processes() if process.pod.uid == pod.uid]
    node.delete_pod(pod.uid)
    assert [one.uid for one in node.pods()] == [kept.uid]
    assert not any(map(alive, pids))
    levels = (node.root.cgroup / "cpuset" / "kubepods" / "besteffort").glob("pod*")
    assert [path.name for path in levels] == [f"pod{kept.uid}"]


def test_a_node_that_is_left_by_an_error_leaves_nothing(folder: Path) -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with EmulatedCgroups(folder, HERE, "") as home, EmbeddedNode(folder, home) as node:
            node.run_pod(manifest("web"))
            pids.extend(process.instance.pid for process in node.processes())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(pids) == 2
    assert not any(map(alive, pids))
    assert not list(folder.rglob("kubepods"))
    assert not list(folder.rglob("*.sock"))


def test_a_pod_whose_start_is_interrupted_leaves_nothing(node: EmbeddedNode) -> None:
    pids: list[int] = []

    def interrupted(_pod: Pod, _name: str) -> None:
        pids.extend(process.instance.pid for process in node.processes())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        node.run_pod(manifest("web", initContainers=[{"name": "setup"}]), interrupted)
    assert node.pods() == ()
    assert len(pids) == 2
    assert not any(map(alive, pids))


def test_each_change_is_reported_after_it_can_be_seen(folder: Path) -> None:
    seen: list[tuple[str, list[str]]] = []

    def changed() -> None:
        phases = [body["status"]["phase"] for body in made.bodies()["items"]]
        seen.append((",".join(phases), running(made)))

    with (
        EmulatedCgroups(folder, HERE, "") as home,
        EmbeddedNode(folder, home, changed=changed) as made,
    ):
        pod = made.run_pod(manifest("web"))
        made.delete_pod(pod.uid)
    assert seen[:3] == [
        ("Pending", []),
        ("Pending", [SANDBOX]),
        ("Running", [SANDBOX, "main"]),
    ]
    assert seen[-1] == ("", [])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param({"spec": {}}, "metadata", id="no metadata"),
        pytest.param({"metadata": {"name": "x"}}, r"spec\.containers: is missing", id="no spec"),
        pytest.param(manifest("taken"), "a pod of this name is here", id="a name that is taken"),
        pytest.param(
            manifest("x", containers=[{"name": "a", "env": [{"name": "A=B"}]}]),
            "a name has no '='",
            id="a variable that no process can carry",
        ),
    ],
)
def test_a_manifest_that_cannot_run_changes_nothing(
    node: EmbeddedNode, body: dict[str, Any], message: str
) -> None:
    node.run_pod(manifest("taken"))
    before = node.processes()
    with pytest.raises(ManifestError, match=message):
        node.run_pod(body)
    assert node.processes() == before


def test_a_pod_that_asks_for_what_is_not_there_is_refused(node: EmbeddedNode) -> None:
    resources = {"limits": {"nokia.k8s.io/exclusive": "1"}}
    with pytest.raises(PodRefused, match=r"Insufficient nokia\.k8s\.io/exclusive: 1"):
        node.run_pod(manifest("web", containers=[{"name": "main", "resources": resources}]))
    assert node.pods() == ()


def test_the_bodies_read_back_as_the_pods(node: EmbeddedNode) -> None:
    node.run_pod(manifest("one", initContainers=[{"name": "setup"}]))
    node.run_pod(manifest("two"))
    listed = node.bodies()
    assert (listed["kind"], len(listed["items"])) == ("PodList", 2)
    assert tuple(descriptions.pod(body, NAMES) for body in listed["items"]) == node.pods()


def test_two_pods_of_one_name_live_in_two_namespaces(node: EmbeddedNode) -> None:
    other = manifest("web")
    other["metadata"]["namespace"] = "prod"
    uids = {node.run_pod(manifest("web")).uid, node.run_pod(other).uid}
    assert len(uids) == 2
    assert PodUID("") not in uids
