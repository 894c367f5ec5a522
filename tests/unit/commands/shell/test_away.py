"""`cpupool explain` away from the node: what the API server knows of a pod."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.core.names import Names
from cpupool.kube.client import APIServer
from cpupool.kube.events import EventRecorder
from cpupool.kube.views import pod as read_pod
from cpupool.telemetry.metrics import Metrics
from tests.kubeconfigs import Login, login
from tests.pods import container

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG_MAP = "/api/v1/namespaces/cpupool/configmaps/cpu-pooler-configmap"
DPDK = """\
pools:
  exclusive_a: {cpus: "2,4"}
  shared_b: {cpus: "1"}
  default: {cpus: "0"}
nodeSelector: {nodeType: dpdk}
"""
ON_NODE = (
    "which of these CPUs it has is known on its node: run `cpupool explain` in the agent's pod"
    " there"
)


def pod(name: str, *containers: dict[str, Any], namespace: str = "web", **spec: Any) -> Any:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}-uid"},
        "spec": {"nodeName": "node-a", "containers": list(containers), **spec},
    }


UPF = pod("upf", container(pools={"exclusive_a": 1}), container("log", pools={"shared_b": 100}))


@pytest.fixture
def cluster(folder: Path) -> Iterator[Login]:
    with login(folder, admin=True) as found:
        found.server.set_labels({"nodeType": "dpdk"})
        found.server.keep_config_map(CONFIG_MAP, dpdk=DPDK)
        found.server.set_pods([UPF])
        yield found


def explain(cluster: Login, asked: str, *options: str) -> int:
    path = cluster.kubeconfig({"jane": cluster.certificate("jane")})
    return cli.main(["explain", asked, "--kubeconfig", str(path), *options])


def keep_event(cluster: Login, name: str, about: dict[str, Any], **fields: Any) -> None:
    cluster.server.keep(
        f"/api/v1/namespaces/web/events/{name}",
        {
            "involvedObject": {"uid": about["metadata"]["uid"]},
            "source": {"component": "cpupool"},
            "type": "Warning",
            "reason": "CPUOffline",
            "message": "CPU 2 is offline; switch it on",
            "lastTimestamp": "2026-11-23T10:00:00Z",
            **fields,
        },
    )


def test_a_container_is_followed_from_its_request_to_its_pool(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(cluster, "web/upf") == 0
    assert (
        capsys.readouterr().out
        == f"""\
web/upf/main: known on its node
  1. request: it requests 1 of exclusive_a => 2,4
  2. node: it is on node-a, whose labels choose poolconfig-dpdk.yaml of\
 cpupool/cpu-pooler-configmap => 2,4
  3. pool: exclusive_a has CPUs 2,4, one owner each, singleThreaded => 2,4
  4. devices: {ON_NODE} => 2,4
web/upf/log: known on its node
  1. request: it requests 100 milli-CPUs of shared_b => 1
  2. node: it is on node-a, whose labels choose poolconfig-dpdk.yaml of\
 cpupool/cpu-pooler-configmap => 1
  3. pool: shared_b has CPUs 1 => 1
  4. devices: {ON_NODE} => 1
"""
    )
    assert {request.user for request in cluster.server.requests} == {"jane"}


def test_it_only_reads(cluster: Login) -> None:
    explain(cluster, "upf")
    assert cluster.server.verbs() == {
        ("list", "pods"),
        ("get", "nodes"),
        ("get", "configmaps"),
        ("list", "events"),
    }


def test_one_container_as_json(cluster: Login, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(cluster, "web/upf/log", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["containers"]
    assert (found["name"], found["cpus"], found["right"]) == ("web/upf/log", None, True)
    assert [step["rule"] for step in found["steps"]] == ["request", "node", "pool", "devices"]


def test_what_the_agent_has_reported_of_the_pod_is_shown_in_its_order(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_event(cluster, "b", UPF, lastTimestamp="2026-11-23T10:05:00Z", message="later")
    keep_event(cluster, "a", UPF)
    keep_event(cluster, "c", UPF, source={"component": "kubelet"}, message="not ours")
    keep_event(cluster, "d", pod("other"), message="of another pod")

    assert explain(cluster, "web/upf/main") == 1
    printed = capsys.readouterr().out
    assert [line[5:] for line in printed.splitlines() if "event: " in line] == [
        "event: 2026-11-23T10:00:00Z: CPUOffline: CPU 2 is offline; switch it on => 2,4",
        "event: 2026-11-23T10:05:00Z: CPUOffline: later => 2,4",
    ]


def test_an_event_of_the_recorder_is_one_of_the_agents(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    server = APIServer.at(cluster.server.url)
    recorder = EventRecorder(server, "node-a", Metrics())
    recorder.pod(read_pod(UPF, Names()), "CPUPoolMissing", "no such pool")
    sent = recorder._waiting[0]
    keep_event(cluster, "a", UPF, **{key: sent[key] for key in ("source", "reason", "message")})

    assert explain(cluster, "web/upf/main") == 1
    assert "CPUPoolMissing: no such pool" in capsys.readouterr().out


def test_news_without_a_warning_are_no_fault(cluster: Login) -> None:
    keep_event(cluster, "a", UPF, type="Normal")
    assert explain(cluster, "web/upf") == 0


def test_a_pool_that_the_node_does_not_have_is_named(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.set_pods([pod("upf", container(pools={"exclusive_x": 1}))])
    assert explain(cluster, "upf") == 1
    assert (
        capsys.readouterr().out
        == """\
web/upf/main: known on its node
  1. request: it requests 1 of exclusive_x => none
  2. node: it is on node-a, whose labels choose poolconfig-dpdk.yaml of\
 cpupool/cpu-pooler-configmap => none
  3. pool: this node has no pool exclusive_x => none
"""
    )


def test_a_node_without_pools_and_a_pod_without_a_node_are_reported(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.set_labels({})
    assert explain(cluster, "upf") == 1
    assert "on node-a, for whose labels cpupool/cpu-pooler-configmap has no pool file" in (
        capsys.readouterr().out
    )
    cluster.server.set_pods([pod("upf", container(pools={"shared_b": 1}), nodeName="")])
    assert explain(cluster, "upf") == 1
    assert "it is on no node yet; see `kubectl describe pod`" in capsys.readouterr().out


def test_a_container_without_a_pool_runs_on_the_default_pool(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.set_pods([pod("plain", container())])
    assert explain(cluster, "plain") == 0
    assert "1. request: it requests no pool, so it runs on the default pool => 0" in (
        capsys.readouterr().out
    )


def test_whole_cpus_of_a_guaranteed_pod_come_from_the_cpu_manager_policy(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = 'cpuManager: {policy: static, reserved: 1, options: {full-pcpus-only: "true"}}\n'
    policy = DPDK.replace('default: {cpus: "0"}', 'default: {cpus: "0,6-9"}') + manager
    cluster.server.keep_config_map(CONFIG_MAP, dpdk=policy)
    whole = {"limits": {"cpu": "2", "memory": "1Gi"}}
    cluster.server.set_pods(
        [pod("own", {"name": "main", "resources": whole}), pod("plain", container())]
    )
    assert explain(cluster, "own") == 0
    printed = capsys.readouterr().out
    assert "1. request: it requests 2 whole CPUs in a Guaranteed pod => 0,6-9" in printed
    gives = "cpuManager: the policy static, full-pcpus-only gives it CPUs of its own => 0,6-9"
    assert gives in printed
    assert f"cpuManager: {ON_NODE} => 0,6-9" in printed
    assert explain(cluster, "plain") == 0
    assert "it requests no pool, so it runs on the default pool" in capsys.readouterr().out


@pytest.mark.parametrize("eligible", ["pod", "container"])
def test_a_container_of_a_burstable_pod_owns_cpus_by_its_own_limit_where_that_counts(
    cluster: Login, capsys: pytest.CaptureFixture[str], eligible: str
) -> None:
    manager = f"cpuManager: {{policy: static, reserved: 1, eligible: {eligible}}}\n"
    policy = DPDK.replace('default: {cpus: "0"}', 'default: {cpus: "0,6-9"}') + manager
    cluster.server.keep_config_map(CONFIG_MAP, dpdk=policy)
    db = {"name": "main", "resources": {"limits": {"cpu": "2"}}}
    cluster.server.set_pods([pod("db", db)])
    assert explain(cluster, "db") == 0
    printed = capsys.readouterr().out
    owns = "1. request: it requests 2 whole CPUs, with an equal limit, in a Burstable pod => 0,6-9"
    assert (owns in printed) == (eligible == "container")


@pytest.mark.parametrize(
    ("setting", "request_"),
    [
        ("topologyScope: pod, podLevelResources: true", "4 whole CPUs for its pod"),
        ("podLevelResources: true", "2 whole CPUs in a Guaranteed pod"),
        ("topologyScope: pod", "no pool, so it runs on the default pool"),
    ],
)
def test_a_pod_with_resources_of_its_own_has_cpus_by_the_setting(
    cluster: Login, capsys: pytest.CaptureFixture[str], setting: str, request_: str
) -> None:
    manager = f"cpuManager: {{policy: static, reserved: 1, {setting}}}\n"
    policy = DPDK.replace('default: {cpus: "0"}', 'default: {cpus: "0,6-9"}') + manager
    cluster.server.keep_config_map(CONFIG_MAP, dpdk=policy)
    body = pod("web", {"name": "main", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}})
    amounts = {"cpu": "4", "memory": "2Gi"}
    body["spec"]["resources"] = {"requests": amounts, "limits": amounts}
    cluster.server.set_pods([body])
    assert explain(cluster, "web") == 0
    assert f"1. request: it requests {request_} => 0,6-9" in capsys.readouterr().out


def test_a_system_pod_runs_on_the_cpus_of_its_namespace(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    system = 'systemPods: {namespaces: [web], cpus: "6-7"}'
    manager = f"cpuManager: {{policy: static, reserved: 1, {system}}}\n"
    policy = DPDK.replace('default: {cpus: "0"}', 'default: {cpus: "0,6-9"}') + manager
    cluster.server.keep_config_map(CONFIG_MAP, dpdk=policy)
    cluster.server.set_pods([pod("dns", container())])
    assert explain(cluster, "dns") == 0
    why = "pods of web run on the CPUs of cpuManager.systemPods.cpus, where nobody else runs"
    assert f"1. request: it requests no pool, and {why} => 6-7" in capsys.readouterr().out


def test_an_owner_of_koordinators_classes_has_the_cpus_that_its_pod_requests(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = "cpuManager: {policy: koordinator, reserved: 1}\n"
    policy = DPDK.replace('default: {cpus: "0"}', 'default: {cpus: "0,6-9"}') + manager
    cluster.server.keep_config_map(CONFIG_MAP, dpdk=policy)
    whole = {"limits": {"cpu": "2", "memory": "1Gi"}}
    owner = pod("own", {"name": "main", "resources": whole})
    owner["spec"]["overhead"] = {"cpu": "1"}
    owner["metadata"]["labels"] = {"koordinator.sh/qosClass": "LSE"}
    cluster.server.set_pods([owner, pod("plain", {"name": "main", "resources": whole})])
    assert explain(cluster, "own") == 0
    printed = capsys.readouterr().out
    assert "1. request: it requests 3 whole CPUs for its pod => 0,6-9" in printed
    assert "cpuManager: the policy koordinator gives it CPUs of its own => 0,6-9" in printed
    assert explain(cluster, "plain") == 0
    assert "it requests no pool, so it runs on the default pool" in capsys.readouterr().out


def test_the_configmap_and_the_domain_may_have_other_names(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.keep_config_map("/api/v1/namespaces/apps/configmaps/pools", a=DPDK)
    body = pod("upf", container(resources={"requests": {"example.com/exclusive_a": 1}}))
    cluster.server.set_pods([body])
    options = ["--configmap", "apps/pools", "--resource-domain", "example.com"]
    assert explain(cluster, "upf", *options) == 0
    assert "poolconfig-a.yaml of apps/pools" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "options", "said"),
    [
        ("gone", [], "there is no pod 'gone' in this cluster; look at `kubectl get pods -A`"),
        ("web/gone", [], "there is no pod 'web/gone' in this cluster"),
        ("web/upf/gone", [], "web/upf has no container 'gone'; use main, log"),
        ("web//main", [], "'web//main' names no pod; write NAMESPACE/POD[/CONTAINER]"),
        ("a/b/c/d", [], "'a/b/c/d' names no pod"),
        ("web/..", [], "'web/..' names no pod"),
        ("web/\udcff", [], "'web/\\udcff' names no pod"),
        (
            "upf",
            ["--configmap", "a/gone"],
            "there is no ConfigMap a/gone; look at `kubectl get configmaps -A`",
        ),
        ("upf", ["--configmap", ""], "--configmap: no ConfigMap is named; write NAMESPACE/NAME"),
        ("upf", ["--configmap", "A"], "'A' is no name of a ConfigMap; write NAMESPACE/NAME"),
        ("upf", ["--policy", "x"], "need a file; leave --kubeconfig out"),
        ("upf", ["--topology", "this"], "need a file; leave --kubeconfig out"),
    ],
)
def test_what_is_not_there_is_a_wrong_command_line(
    cluster: Login, asked: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(cluster, asked, *options) == 2
    assert said in capsys.readouterr().err


def test_a_name_of_several_pods_is_asked_back(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.set_pods([UPF, pod("upf", container(), namespace="db")])
    assert explain(cluster, "upf") == 2
    assert "'upf' is the name of several pods; say which: web/upf, db/upf" in (
        capsys.readouterr().err
    )


def test_pool_files_that_are_refused_are_reported_with_their_place(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.keep_config_map(CONFIG_MAP, dpdk="pools: {exclusive_a: {cpus: x}}")
    assert explain(cluster, "upf") == 2
    assert "poolconfig-dpdk.yaml:1:" in capsys.readouterr().err


def test_a_right_that_is_missing_is_reported(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb, resource in (("get", "pods"), ("get", "configmaps"), ("list", "events")):
        cluster.server.forbidden = {(verb, resource)}
        assert explain(cluster, "web/upf") == 1
        assert f"{verb} {resource}: 403 Forbidden" in capsys.readouterr().err


def test_a_list_that_is_none_is_reported(
    cluster: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.server.refuse(200, body=b'{"items": [1]}')
    assert explain(cluster, "upf") == 1
    assert "is no list of objects" in capsys.readouterr().err
