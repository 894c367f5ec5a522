"""The webhook is deployed as its commands and its certificates need it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cpupool import cli
from cpupool.kube.client import SERVICE_ACCOUNT
from cpupool.webhook.https.certificate_renewal import service_names
from tests.pod_security import beyond_baseline, beyond_restricted
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "daemonsets/webhook"
WITH_CERT_MANAGER = ROOT / "daemonsets/webhook-cert-manager"

Body = dict[str, Any]


def objects(folder: Path) -> dict[tuple[str, str], Body]:
    """Give the objects of a folder by kind and name."""
    paths = sorted(path for path in folder.glob("*.yaml") if path.name != "kustomization.yaml")
    found = [one for path in paths for one in yaml.safe_load_all(path.read_text())]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


OBJECTS = objects(FOLDER)
NAME = "cpupool-webhook"
DEPLOYMENT = OBJECTS["Deployment", NAME]
POD = DEPLOYMENT["spec"]["template"]["spec"]
CERTS = OBJECTS["Deployment", "cpupool-certs"]
PODS = {"webhook": POD, "certs": CERTS["spec"]["template"]["spec"]}
SERVICE = OBJECTS["Service", NAME]
SECRET = OBJECTS["Secret", "cpupool-webhook-tls"]
(WEBHOOK,) = OBJECTS["MutatingWebhookConfiguration", NAME]["webhooks"]


def part(name: str) -> Body:
    """Give the only container of a pod; a process with the rights of both there is not."""
    (found,) = PODS[name]["containers"]
    assert found["name"] == name
    return dict(found)


def taken(name: str) -> argparse.Namespace:
    arguments = part(name)["args"]
    return cli._parser(arguments).parse_args(arguments)


def volumes(name: str) -> dict[str, Body]:
    """Give what a container mounts: place → volume."""
    by_name = {one["name"]: one for one in PODS[name]["volumes"]}
    mounts = part(name)["volumeMounts"]
    assert all(one["readOnly"] and "subPath" not in one for one in mounts)
    return {one["mountPath"]: by_name[one["name"]] for one in mounts}


def test_the_webhook_serves_where_it_is_asked() -> None:
    arguments = taken("webhook")
    ports = {one["name"]: one["containerPort"] for one in part("webhook")["ports"]}
    (port,) = SERVICE["spec"]["ports"]
    called = WEBHOOK["clientConfig"]["service"]

    assert ports == {"https": arguments.port, "metrics": arguments.metrics_port}
    assert port == {"name": "https", "port": 443, "targetPort": "https"}
    assert {key: SERVICE["metadata"][key] for key in ("name", "namespace")} == {
        key: called[key] for key in ("name", "namespace")
    }
    assert called["path"] == "/mutating-pods"
    # `cpupool certs` fills it; in the file it would be reset by each apply.
    assert "caBundle" not in WEBHOOK["clientConfig"]
    assert {
        name: part("webhook")[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")
    } == {
        "liveness": {"path": "/healthz", "port": "metrics"},
        "readiness": {"path": "/readyz", "port": "metrics"},
    }


def test_the_webhook_sees_its_certificate_and_the_agents_pools() -> None:
    arguments = taken("webhook")
    mounted = volumes("webhook")
    pools = mounted.pop(str(arguments.config))
    tls = mounted.pop(str(arguments.tls_cert_file.parent))
    del mounted[str(SERVICE_ACCOUNT)]
    agent = yaml.safe_load((ROOT / "daemonsets/agent/daemonset.yaml").read_text())

    assert mounted == {}
    assert pools["configMap"]["optional"]
    assert pools["configMap"]["name"] in {
        one["configMap"]["name"]
        for one in agent["spec"]["template"]["spec"]["volumes"]
        if "configMap" in one
    }
    assert agent["metadata"]["namespace"] == DEPLOYMENT["metadata"]["namespace"]
    assert tls["secret"]["optional"]
    assert tls["secret"]["secretName"] == SECRET["metadata"]["name"]
    # The key of the CA is not among them.
    assert {one["path"] for one in tls["secret"]["items"]} == {
        arguments.tls_cert_file.name,
        arguments.tls_private_key_file.name,
    }
    assert "data" not in SECRET


def test_the_maker_of_the_certificates_knows_its_objects() -> None:
    arguments = taken("certs")

    assert list(volumes("certs")) == [str(SERVICE_ACCOUNT)]
    assert arguments.watch
    assert arguments.secret == SECRET["metadata"]["name"]
    assert arguments.service == SERVICE["metadata"]["name"]
    assert ("MutatingWebhookConfiguration", arguments.webhook_configuration) in OBJECTS
    assert CERTS["metadata"]["namespace"] == DEPLOYMENT["metadata"]["namespace"]
    # What it makes stays without it, and one is enough.
    assert CERTS["spec"]["replicas"] == 1


@pytest.mark.parametrize("name", PODS)
def test_a_token_is_of_its_pod_and_expires(name: str) -> None:
    sources = volumes(name)[str(SERVICE_ACCOUNT)]["projected"]["sources"]
    (token,) = (one["serviceAccountToken"] for one in sources if "serviceAccountToken" in one)
    files = [
        one.get("path") or item["path"]
        for source in sources
        for one in source.values()
        for item in one.get("items", [one])
    ]

    assert sorted(files) == ["ca.crt", "namespace", "token"]
    # No audience: the API server's own. With 3607 s its life would be a year (the API server's
    # --service-account-extend-token-expiration).
    assert token == {"path": "token", "expirationSeconds": 3600}
    assert not PODS[name]["automountServiceAccountToken"]
    assert ("ServiceAccount", PODS[name]["serviceAccountName"]) in OBJECTS


def test_no_token_lives_for_ever_and_no_account_is_that_of_both() -> None:
    kinds = [one["type"] for (kind, _), one in OBJECTS.items() if kind == "Secret"]
    accounts = [pod["serviceAccountName"] for pod in PODS.values()]

    assert kinds == ["Opaque"]
    assert accounts == ["cpupool-namespaces", "cpupool-certs"]
    for kind, name in OBJECTS:
        if kind.endswith("Binding"):
            (subject,) = OBJECTS[kind, name]["subjects"]
            assert subject["name"] in accounts


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_at_the_restricted_level(name: str) -> None:
    assert beyond_baseline(PODS[name]) == []
    assert beyond_restricted(PODS[name]) == []
    assert part(name)["securityContext"]["readOnlyRootFilesystem"]


def test_one_replica_is_always_there() -> None:
    spec = DEPLOYMENT["spec"]
    labels = spec["template"]["metadata"]["labels"]
    (spread,) = POD["topologySpreadConstraints"]
    budget = OBJECTS["PodDisruptionBudget", NAME]["spec"]

    assert spec["replicas"] - budget["maxUnavailable"] == 1
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    for selector in (spec["selector"], spread["labelSelector"], budget["selector"]):
        assert selector == {"matchLabels": labels}
    assert SERVICE["spec"]["selector"] == labels
    # No request for the webhook reaches the pod that makes its certificates.
    others = CERTS["spec"]["template"]["metadata"]["labels"]
    assert CERTS["spec"]["selector"] == {"matchLabels": others}
    assert not labels.items() <= others.items()


def test_the_webhook_keeps_away_from_itself_and_from_the_system() -> None:
    (namespaces,) = WEBHOOK["namespaceSelector"]["matchExpressions"]
    (own,) = WEBHOOK["objectSelector"]["matchExpressions"]

    assert namespaces == {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": ["kube-system", DEPLOYMENT["metadata"]["namespace"]],
    }
    assert own["operator"] == "NotIn"
    for one in (DEPLOYMENT, CERTS):
        assert one["spec"]["template"]["metadata"]["labels"][own["key"]] in own["values"]


@pytest.fixture(scope="module")
def built() -> dict[tuple[str, str], Body]:
    """Give what the folder for cert-manager comes to."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl to build kustomizations with")
    command = [kubectl, "kustomize", str(WITH_CERT_MANAGER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}


def test_with_cert_manager_nothing_else_makes_certificates(
    built: dict[tuple[str, str], Body],
) -> None:
    kinds = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ServiceAccount"}

    assert built["Deployment", NAME] == DEPLOYMENT
    assert [name for kind, name in built if kind in {"Deployment", "Secret"}] == [NAME]
    assert {name for kind, name in built if kind in kinds} == {"cpupool-namespaces"}


def test_cert_manager_makes_what_the_webhook_serves(built: dict[tuple[str, str], Body]) -> None:
    served = built["Certificate", NAME]
    annotations = built["MutatingWebhookConfiguration", NAME]["metadata"]["annotations"]
    namespace = DEPLOYMENT["metadata"]["namespace"]
    signers = {
        name: one["spec"]["ca"]["secretName"]
        for (kind, name), one in built.items()
        if kind == "Issuer" and "ca" in one["spec"]
    }
    authority = built["Certificate", "cpupool-webhook-ca"]["spec"]

    assert annotations == {"cert-manager.io/inject-ca-from": f"{namespace}/{NAME}"}
    assert served["metadata"]["namespace"] == namespace
    assert served["spec"]["secretName"] == SECRET["metadata"]["name"]
    assert served["spec"]["dnsNames"] == list(service_names(NAME, namespace))
    assert signers[served["spec"]["issuerRef"]["name"]] == authority["secretName"]
    assert authority["isCA"]
    assert "selfSigned" in built["Issuer", authority["issuerRef"]["name"]]["spec"]
