"""The component that makes Guaranteed pods need the agent, without those that the agent may need.

The conditions run in another implementation of CEL than the API server's.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cel
import kubernetes_validate  # type: ignore[import-untyped]  # it carries no types
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from cpupool.webhook.admission.review import answer
from cpupool.webhook.admission.rules import RequiredAgent, Rules
from tests.architecture.test_manifests import NEWEST, kustomized, only, parsed
from tests.pods import container, pod, review

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
FILE = ROOT / "daemonsets/require-agent/kustomization.yaml"
PAGE = (ROOT / "docs/user/webhook.md").read_text()
_, PATCH = (yaml.safe_load(each["patch"]) for each in yaml.safe_load(FILE.read_text())["patches"])
((WEBHOOK),) = (each["value"] for each in PATCH)
CONDITIONS = [cel.compile(each["expression"]) for each in WEBHOOK["matchConditions"]]
RULES = Rules(required_agent=RequiredAgent.GUARANTEED)
WHOLE = {"cpu": "2", "memory": "1Gi"}
OF_THE_NODE = "system-node-critical"

Body = dict[str, Any]


def asked(body: Body) -> bool:
    """Return whether the API server asks the webhook about a new pod, through the component."""
    return all(condition.execute({"object": body}) for condition in CONDITIONS)


def changed(body: Body) -> bool:
    """Return whether the webhook would change a new pod."""
    return "patch" in answer(review(body), RULES)["response"]


def of(limits: Mapping[str, str], **fields: Any) -> Body:
    """Make a pod of one container."""
    return pod(container(resources={"limits": dict(limits)}), **fields)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(of(WHOLE), True, id="Guaranteed"),
        pytest.param(of(WHOLE, priorityClassName="system-cluster-critical"), True, id="class"),
        pytest.param(of(WHOLE, priorityClassName=OF_THE_NODE), False, id="a network plugin"),
        pytest.param(of({"cpu": "2"}), False, id="Burstable"),
        pytest.param(pod(container()), False, id="BestEffort"),
        pytest.param(
            pod(container("a", resources={"limits": WHOLE}), container("b", resources={})),
            False,
            id="one container without limits",
        ),
    ],
)
def test_the_api_server_asks_about_pods_that_may_be_guaranteed(body: Body, expected: bool) -> None:
    assert asked(body) == expected
    assert changed(body) == expected


AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["2", "1500m", "2000m", "0"]),
        "memory": st.sampled_from(["1Gi", "0"]),
        "example.com/gpu": st.just("1"),
    },
)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.sampled_from("abc"), "image": st.just("app")},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"limits": AMOUNTS, "requests": AMOUNTS})
    },
)
LISTS = st.lists(CONTAINERS, min_size=1, max_size=2)
SPECS = st.fixed_dictionaries(
    {"containers": LISTS},
    optional={
        "initContainers": LISTS,
        "priorityClassName": st.sampled_from([OF_THE_NODE, "system-cluster-critical", ""]),
        "hostNetwork": st.booleans(),
    },
)


@given(SPECS)
@example(of(WHOLE)["spec"])
@example({**of(WHOLE)["spec"], "priorityClassName": OF_THE_NODE})
def test_the_webhook_changes_no_pod_that_it_is_not_asked_about(spec: Body) -> None:
    body = {"metadata": {}, "spec": spec}

    assert asked(body) or not changed(body)
    assert not (asked(body) and spec.get("priorityClassName") == OF_THE_NODE)


@pytest.mark.parametrize("base", ["webhook", "webhook-cert-manager"])
def test_the_component_goes_with_any_overlay_that_has_the_webhook(
    tmp_path: Path, base: str
) -> None:
    found = built(tmp_path, yaml.safe_dump(overlay(base)))

    configuration = only("MutatingWebhookConfiguration", found)
    kubernetes_validate.validate(configuration, NEWEST, strict=True)
    pools, guaranteed = configuration["webhooks"]
    # What stays outside of the one stays outside of the other.
    for key in pools.keys() - {"name", "rules", "matchConditions"}:
        assert guaranteed[key] == pools[key]
    (webhook,) = (
        one["spec"]["template"]["spec"]["containers"][0]
        for one in found
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "cpupool-webhook"
    )
    assert parsed(webhook["args"]).require_agent == RequiredAgent.GUARANTEED.value


def test_the_documented_overlay_excludes_the_network_plugin(tmp_path: Path) -> None:
    (text,) = re.findall(
        r"^```yaml\n(resources: [^\n]*\ncomponents: \[../require-agent\]\n.*?)^```",
        PAGE,
        re.MULTILINE | re.DOTALL,
    )

    found = built(tmp_path, text)

    _, guaranteed = only("MutatingWebhookConfiguration", found)["webhooks"]
    (namespaces,) = guaranteed["namespaceSelector"]["matchExpressions"]
    assert namespaces["operator"] == "NotIn"
    assert namespaces["values"] == ["kube-system", "cpupool", "NETWORK-PLUGIN"]


def overlay(base: str) -> dict[str, list[str]]:
    return {"resources": [f"../{base}"], "components": ["../require-agent"]}


def built(folder: Path, text: str) -> list[Body]:
    """Build an overlay that is written for a folder beside the others."""
    beside = os.path.relpath(ROOT / "daemonsets", folder.resolve())
    (folder / "kustomization.yaml").write_text(text.replace("../", f"{beside}/"))
    return kustomized(folder)
