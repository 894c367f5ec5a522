"""Each part is granted what it asks the API server for, and nothing that it does not ask for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from cpupool import cli
from cpupool.core.names import Names
from cpupool.kube.client import APIServer
from cpupool.kube.cluster_view import ClusterView
from cpupool.kube.config_map import ConfigMapName
from cpupool.kube.node_status import NodeStatusObject
from cpupool.kube.node_topology import NodeTopologyObject
from cpupool.kube.pod_status import PodStatus
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics, WebhookMetrics
from cpupool.webhook.admission.rules import Rules
from cpupool.webhook.certificate_keeper import CertificateKeeper
from cpupool.webhook.certificate_maker import CertificateMaker
from cpupool.webhook.objects import Installed
from cpupool.webhook.service import Webhook, WebhookSettings
from cpupool.wire.node_topology import GROUP, PLURAL, VERSIONS
from tests import builders
from tests.apiserver import FakeAPIServer
from tests.loops import running, running_all
from tests.pods import container, pod, review
from tests.waiting import eventually
from tests.webhooks import LOCALHOST

FOLDER = Path(__file__).parents[2] / "daemonsets"
NODE = "node-a"
PARTS = {"agent": "DaemonSet", "webhook": "Deployment"}
CERTS = "webhook/certs.yaml"
NAMESPACES = "webhook/namespaces.yaml"


def documents(part: str) -> dict[str, dict[str, Any]]:
    """Give the objects of a part or of one file by kind; there is one of each."""
    place = FOLDER / part
    apart = {"kustomization.yaml", Path(CERTS).name}
    paths = [place] if place.is_file() else sorted(place.glob("*.yaml"))
    found = [
        document
        for path in paths
        if path == place or path.name not in apart
        for document in yaml.safe_load_all(path.read_text())
    ]
    by_kind = {document["kind"]: document for document in found}
    assert len(by_kind) == len(found)
    return by_kind


def rules(part: str) -> list[dict[str, Any]]:
    found = documents(part)
    kinds = [kind for kind in ("ClusterRole", "Role") if kind in found]
    return [rule for kind in kinds for rule in found[kind]["rules"]]


def granted(part: str) -> list[tuple[str, str]]:
    return sorted(
        (verb, resource)
        for rule in rules(part)
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def groups(part: str) -> dict[str, str]:
    """Give the API group of each resource."""
    found: dict[str, str] = {}
    for rule in rules(part):
        (group,) = rule["apiGroups"]
        found |= dict.fromkeys(rule["resources"], group)
    return found


def followed(part: str) -> ConfigMapName:
    """Return the one ConfigMap that a part may list and watch: that of its flag and its folder."""
    role = documents(part)["Role"]
    (name,) = (
        rule["resourceNames"] for rule in role["rules"] if rule["resources"] == ["configmaps"]
    )
    found = ConfigMapName(role["metadata"]["namespace"], *name)
    for workload, command in (("agent", "agent"), ("webhook", "webhook")):
        pod = documents(workload)[PARTS[workload]]["spec"]["template"]
        mounted = [one["configMap"] for one in pod["spec"]["volumes"] if "configMap" in one]
        assert [one["name"] for one in mounted] == [found.name]
        assert documents(workload)[PARTS[workload]]["metadata"]["namespace"] == found.namespace
        assert cli._parser([command]).parse_args([command]).configmap == found.name
    return found


def test_the_agent_is_granted_exactly_what_it_asks_for() -> None:
    with FakeAPIServer(NODE) as server:
        cluster = ClusterView(
            APIServer.at(server.url),
            NODE,
            Names(),
            Metrics(),
            lambda: None,
            pods_changed=lambda: None,
            config_map=followed("agent"),
        )
        with running_all(cluster):
            for resource in ("pods", "nodes", "configmaps"):
                eventually(partial(server.watching, resource), f"a watch of {resource}")
            cluster.events.pod(builders.pod("upf"), "CPUOffline", "CPU 3 is offline; switch it on")
            cluster.events.node("CPUPoolConfigInvalid", "no such CPU; run cpupool validate")
            eventually(lambda: len(server.events) == 2, "two Events")
        asked = server.verbs()

    assert granted("agent") == sorted(asked)
    assert groups("agent") == {"pods": "", "nodes": "", "events": "", "configmaps": ""}
    (role,) = documents("agent")["Role"]["rules"]
    assert role["resources"] == ["configmaps"]


@pytest.mark.parametrize(
    ("folder", "verb"), [("fail-misfits", "fail"), ("resource-status", "assign")]
)
def test_who_writes_pods_is_granted_the_patch_of_their_status_alone(folder: str, verb: str) -> None:
    upf = builders.pod("upf")
    body = {"metadata": {"name": "upf", "uid": upf.uid}, "status": {"phase": "Pending"}}
    with FakeAPIServer(NODE) as server:
        server.set_pods([body])
        pods = PodStatus(APIServer.at(server.url))
        if verb == "fail":
            pods.fail(upf, "SMTAlignmentError", "no")
        else:
            pods.annotate(upf, "a", "b")
        asked = server.verbs()

    assert asked == {("patch", "pods/status")}
    # The other right names the purpose, for the policy of the other folder.
    assert granted(folder) == sorted({*asked, (verb, "pods")})
    assert groups(folder) == {"pods/status": "", "pods": "cpupool.io"}
    found, account = documents(folder), documents("agent")["ServiceAccount"]["metadata"]
    assert_bound({**found, "ServiceAccount": {"metadata": account}})
    policy = found["ValidatingAdmissionPolicy"]
    assert (
        found["ValidatingAdmissionPolicyBinding"]["spec"]["policyName"]
        == (policy["metadata"]["name"])
    )


def test_who_writes_the_nodes_resources_is_granted_the_patch_of_its_status_alone() -> None:
    with FakeAPIServer(NODE) as server:
        NodeStatusObject(APIServer.at(server.url), NODE).apply(f"{NODE}-uid", {"a.com/b": 1})
        asked = server.verbs()

    assert granted("node-resources") == sorted(asked)
    assert groups("node-resources") == {"nodes/status": ""}
    found, account = documents("node-resources"), documents("agent")["ServiceAccount"]
    assert_bound({**found, "ServiceAccount": {"metadata": account["metadata"]}})
    binding = found["ValidatingAdmissionPolicyBinding"]["spec"]
    assert binding["policyName"] == found["ValidatingAdmissionPolicy"]["metadata"]["name"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_topology_reporter_is_granted_what_following_and_applying_its_object_takes(
    version: str,
) -> None:
    with FakeAPIServer(NODE) as server:
        server.crds = {GROUP: [version]}
        followed = NodeTopologyObject(
            APIServer.at(server.url), NODE, restarted=lambda _resource, _reason: None
        )
        with running(followed.run, wake=followed.wake):
            eventually(lambda: server.watching(PLURAL), "a watch of the object")
            followed.apply("1-2-3", {})
            followed.apply("4-5-6", {})
        asked = server.verbs()

    # Every service account may read which versions a group has (system:discovery).
    assert granted("topology-reporter") == sorted(asked - {("get", "apis")})
    assert groups("topology-reporter") == {PLURAL: GROUP}
    found, account = documents("topology-reporter"), documents("agent")["ServiceAccount"]
    assert_bound({**found, "ServiceAccount": {"metadata": account["metadata"]}})
    binding = found["ValidatingAdmissionPolicyBinding"]["spec"]
    assert binding["policyName"] == found["ValidatingAdmissionPolicy"]["metadata"]["name"]


def test_who_makes_the_webhooks_certificates_is_granted_exactly_what_that_takes() -> None:
    found = documents("webhook")
    secret, configuration = found["Secret"], found["MutatingWebhookConfiguration"]
    names = {
        "secrets": secret["metadata"]["name"],
        "mutatingwebhookconfigurations": configuration["metadata"]["name"],
    }
    namespace, group = secret["metadata"]["namespace"], "admissionregistration.k8s.io"
    places = {
        "secrets": f"/api/v1/namespaces/{namespace}",
        "mutatingwebhookconfigurations": f"/apis/{group}/v1",
    }
    paths = {resource: f"{places[resource]}/{resource}/{name}" for resource, name in names.items()}
    installed = Installed(
        namespace=namespace,
        secret=names["secrets"],
        service=found["Service"]["metadata"]["name"],
        configuration=names["mutatingwebhookconfigurations"],
    )
    with FakeAPIServer(NODE) as server:
        server.keep(paths["secrets"], secret)
        server.keep(paths["mutatingwebhookconfigurations"], configuration)
        api = APIServer.at(server.url)
        keeper = CertificateKeeper(api, installed, CertificateMaker(api, installed).look)
        with running_all(keeper):
            watched = "mutatingwebhookconfigurations"
            eventually(lambda: len(server.updates) == 3 and server.watching(watched), "all is made")
        asked, kept = server.verbs(), server.kept(paths["mutatingwebhookconfigurations"])

    assert granted(CERTS) == sorted(asked)
    assert groups(CERTS) == {"secrets": "", "mutatingwebhookconfigurations": group}
    # For every Secret and every configuration they would be the cluster's.
    limited = {one: rule["resourceNames"] for rule in rules(CERTS) for one in rule["resources"]}
    assert limited == {resource: [name] for resource, name in names.items()}
    assert documents(CERTS)["Role"]["metadata"]["namespace"] == namespace
    assert all(one["clientConfig"].pop("caBundle") for one in kept["webhooks"])
    assert kept["webhooks"] == configuration["webhooks"]


def test_the_webhook_itself_may_look_at_namespaces_and_its_pools_only(tmp_path: Path) -> None:
    files = (tmp_path, tmp_path / "tls.crt", tmp_path / "tls.key")
    rules = Rules(mixed={"shared-a": 1})
    resources = {"limits": {"workload.openshift.io/enable-shared-cpus": "1"}}
    with FakeAPIServer(NODE) as server:
        settings = WebhookSettings(
            *files,
            rules,
            LOCALHOST,
            0,
            api_server=APIServer.at(server.url),
            config_map=followed(NAMESPACES),
        )
        webhook = Webhook(settings, WebhookMetrics(), Health())
        webhook.review(review(pod(container(resources=resources)), namespace="apps"), mutate=True)
        with running_all(webhook):
            eventually(lambda: server.watching("configmaps"), "a watch of the ConfigMap")
        webhook.server.close()
        asked = server.verbs()

    configmaps = [("list", "configmaps"), ("watch", "configmaps")]
    assert granted(NAMESPACES) == sorted(asked) == [("get", "namespaces"), *configmaps]
    assert groups(NAMESPACES) == {"namespaces": "", "configmaps": ""}


def assert_bound(found: dict[str, dict[str, Any]]) -> None:
    """See that the rights there are those of the account there."""
    account = found["ServiceAccount"]["metadata"]
    for kind in {"ClusterRole", "Role"} & found.keys():
        assert found[f"{kind}Binding"]["subjects"] == [{"kind": "ServiceAccount", **account}]
        assert found[f"{kind}Binding"]["roleRef"] == {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": kind,
            "name": found[kind]["metadata"]["name"],
        }


@pytest.mark.parametrize(("part", "kind"), [*PARTS.items(), (CERTS, "Deployment")])
def test_the_rights_are_those_of_the_parts_pods(part: str, kind: str) -> None:
    found = documents(part)
    account, workload = found["ServiceAccount"]["metadata"], found[kind]
    template = workload["spec"]["template"]["spec"]

    assert_bound(found)
    assert template["serviceAccountName"] == account["name"]
    # The others mount a token that expires sooner.
    assert template["automountServiceAccountToken"] == (part == "agent")
    assert workload["metadata"]["namespace"] == account["namespace"]
