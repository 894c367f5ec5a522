"""CPU-Pooler's own test pods and admission requests, unedited, and the pods of our examples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it carries no types
import pytest
import yaml

from cpupool.config import poolconfig
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.names import MIXED_CPUS_ALLOWED, Names
from cpupool.webhook.admission.decision import admit
from cpupool.webhook.admission.review import answer
from cpupool.webhook.admission.rules import Rules
from tests import testdata
from tests.pod_security import beyond_baseline
from tests.pods import stored

STARTER = "/opt/cpupool/process-starter"
# The pods of these examples request native CPUs, or a pool that is no sample.
EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").rglob("*.yaml")
    if path.parent.name not in {"cpu-manager", "koordinator", "own-cpus"}
)
VERSIONS = ("1.28", "1.37")
"""The oldest and the newest Kubernetes that cpupool runs on."""


@pytest.fixture(scope="module")
def samples() -> Path:
    return testdata.folder() / "cpu-pooler"


@pytest.fixture(scope="module")
def rules(samples: Path) -> Rules:
    """Give what a webhook goes by that knows the sample ConfigMap."""
    path = samples / "cpu-pooler-config.yaml"
    found = poolconfig.sources(path.name, path.read_bytes(), [])
    files = poolconfig.parse_all(found, Names(), [])
    return Rules().knowing([file.pools for file in files])


def admitted(body: Any, rules: Rules) -> dict[str, Any]:
    """Admit a pod as the API server has it done, and give its containers by name."""
    request = {"kind": {"group": "", "kind": "Pod"}, "operation": "CREATE", "object": body}
    document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    response = answer({**document, "request": {"uid": "u", **request}}, rules)["response"]
    assert response["allowed"], response
    made = stored(body, response)
    for version in VERSIONS:
        kubernetes_validate.validate(made, version, strict=True)
    assert beyond_baseline(made["spec"]) == []
    return {one["name"]: one for one in made["spec"]["containers"]}


def cpu(container: Any) -> tuple[str, str]:
    resources = container["resources"]
    return resources["requests"]["cpu"], resources["limits"]["cpu"]


def test_the_pod_with_exclusive_cpus(samples: Path, rules: Rules) -> None:
    body = yaml.safe_load((samples / "cpu-test-exclusive.yaml").read_text())
    made = admitted(body, rules)["cputest-exclusive"]
    assert made["command"] == [STARTER]
    assert made["args"] == [
        *("--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_POOL"),
        *("--", "/thread_busyloop", "-c", "$(EXCLUSIVE_CPUS)"),
    ]
    assert made["env"] == [
        {"name": "CPU_POOLS", "value": "exclusive"},
        {"name": "CONTAINER_NAME", "value": "cputest-exclusive"},
    ]
    assert cpu(made) == ("0m", "2100m")


def test_the_pod_with_exclusive_and_shared_cpus(samples: Path, rules: Rules) -> None:
    body = yaml.safe_load((samples / "cpu-test-shared-exclusive.yaml").read_text())
    made = admitted(body, rules)["cputest-exclusive"]
    assert made["args"] == [
        *("--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_POOL", "--shared", "shared-pool", "--"),
        *("/thread_busyloop", "-c", "$(EXCLUSIVE_CPUS)", "-s", "$(SHARED_CPUS)"),
        "-n 'Process cputest-exclusive'",
    ]
    assert made["env"][0] == {"name": "CPU_POOLS", "value": "exclusive&shared"}
    assert cpu(made) == ("0m", "3000m")


def test_the_pod_with_an_annotation(samples: Path, rules: Rules) -> None:
    body = yaml.safe_load((samples / "cpu-test.yaml").read_text())
    made = admitted(body, rules)
    assert made["exclusivetestcontainer"]["args"] == [
        *("--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_POOL", "--shared", "shared-pool"),
        *("--process", "0:CPUPOOL_CPUS_EXCLUSIVE_POOL:1:3"),
        *("/bin/sh", "-c", '/thread_busyloop -n "Process "1'),
        *("--process", "1:CPUPOOL_CPUS_EXCLUSIVE_POOL:1:3"),
        *("/bin/sh", "-c", '/thread_busyloop -n "Process "2'),
        *("--process", "2:shared:0:3", "/bin/sh", "-c", '/thread_busyloop -n "Process "3'),
    ]
    assert cpu(made["sharedtestcontainer"]) == ("0m", "160m")
    assert made["sharedtestcontainer"]["command"] == ["/bin/sh", "-c", "--"]
    assert made["defaulttestcontainer"] == body["spec"]["containers"][2]


@pytest.mark.parametrize(
    ("name", "denial"),
    [
        pytest.param("both-pool-types-req", "", id="both kinds"),
        pytest.param("shared-pool-req", "", id="shared, beside pools that are no resource"),
        pytest.param("wrong-excl-pool-value-req", "", id="4 CPUs of 3 cores with 2 threads each"),
        pytest.param(
            "excl-pool-req-missing",
            "does not request exclusive-pool; request it",
            id="another pool",
        ),
        pytest.param("pool-req-missing", "requests no exclusive or shared pool", id="no request"),
        pytest.param(
            "wrong-pool-value-req",
            "they have 160 milli-CPUs of shared-pool together, and container cputestcontainer"
            " requests 120",
            id="more shared than requested",
        ),
        pytest.param("exclusive-pool-req", "", id="two exclusive pools"),
    ],
)
def test_the_sample_reviews(samples: Path, name: str, denial: str) -> None:
    document = json.loads((samples / f"pod-spec-{name}.json").read_text())
    with pytest.raises(RemoteProtocolError, match=r"admissionReviewVersions: \[v1\]"):
        answer(document, Rules())
    response = answer({**document, "apiVersion": "admission.k8s.io/v1"}, Rules())["response"]
    assert response["uid"] == document["request"]["uid"]
    assert response["allowed"] == (denial == "") == ("patch" in response)
    assert denial in response.get("status", {}).get("message", "")
    assert beyond_baseline(stored(document["request"]["object"], response)["spec"]) == []


def pods(path: Path) -> list[Any]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one.get("kind") == "Pod"]


@pytest.mark.parametrize("path", [path for path in EXAMPLES if pods(path)], ids=lambda at: at.stem)
def test_an_example_is_admitted_where_the_sample_pools_are(path: Path, rules: Rules) -> None:
    allowed = {MIXED_CPUS_ALLOWED: ""}
    rules = replace(rules, mixed={"shared-pool": 2}, namespaces=lambda _namespace: allowed)
    for body in pods(path):
        assert any("CPU_POOLS" in json.dumps(one) for one in admitted(body, rules).values())
        assert admit(body, rules).warnings == ()  # admitted
