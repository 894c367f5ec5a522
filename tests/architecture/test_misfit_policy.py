"""An agent may fail pending pods of its own node, and write nothing else of them.

The expressions run in another implementation of CEL than the API server's.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml

from tests.architecture import authorizers

FILE = Path(__file__).parents[2] / "daemonsets/fail-misfits/admission-policy.yaml"
POLICY, BINDING = yaml.safe_load_all(FILE.read_text())
SPEC = POLICY["spec"]
CONDITIONS = [cel.compile(one["expression"]) for one in SPEC["matchConditions"]]
STATUS = "scheduling.koordinator.sh/resource-status"
VALIDATIONS = {one["message"]: cel.compile(one["expression"]) for one in SPEC["validations"]}
AGENT = "system:serviceaccount:cpupool:cpupool-agent"
NODE_NAME = "authentication.kubernetes.io/node-name"

Body = dict[str, Any]

PENDING: Body = {
    "metadata": {
        "name": "web",
        "uid": "1-2-3",
        "resourceVersion": "7",
        "labels": {"app": "web"},
        "managedFields": [{"manager": "kubelet"}],
    },
    "spec": {"nodeName": "node-a"},
    "status": {"phase": "Pending", "qosClass": "Guaranteed", "conditions": [{"type": "Ready"}]},
}


def failed(body: Body = PENDING) -> Body:
    """Return a pod after the agent's patch."""
    new = copy.deepcopy(body)
    new["status"] |= {"phase": "Failed", "reason": "SMTAlignmentError", "message": "no"}
    new["metadata"]["managedFields"] += [{"manager": "cpupool"}]
    return new


def denials(
    new: Body, old: Body = PENDING, user: Body | None = None, *, assigns: bool = False
) -> set[str]:
    """Return why the API server denies a change; nothing if it allows it.

    Args:
        new: the pod.
        old: the pod before.
        user: who asks; None for the agent of the pod's node.
        assigns: whether the agent has the right of the folder resource-status, too.
    """
    agent = {"username": AGENT, "extra": {NODE_NAME: ["node-a"]}}
    values = authorizers.context(
        {"cpupool.io/pods/assign"} if assigns else set(),
        request={"userInfo": user or agent},
        object=new,
        oldObject=old,
    )
    if not all(condition.execute(values) for condition in CONDITIONS):
        return set()
    return {why for why, allows in VALIDATIONS.items() if not allows.execute(values)}


def test_an_agent_may_fail_a_pending_pod_of_its_node() -> None:
    assert denials(failed()) == set()


@pytest.mark.parametrize("extra", [{}, {NODE_NAME: ["node-b"]}, {NODE_NAME: ["node-b", "node-a"]}])
def test_no_agent_may_write_a_pod_of_another_node(extra: Body) -> None:
    user = {"username": AGENT, "extra": extra}
    assert denials(failed(), user=user) == {"an agent may write only pods of its own node"}


def test_no_other_is_asked() -> None:
    kubelet = {"username": "system:node:node-a"}
    assert denials({**failed(), "status": {"phase": "Running"}}, user=kubelet) == set()


def test_a_running_pod_may_not_fail() -> None:
    running = {**PENDING, "status": {**PENDING["status"], "phase": "Running"}}
    (why,) = denials(failed(running), running)
    assert "pending" in why


def changed(part: str, **fields: Any) -> Body:
    new = failed()
    for key, value in fields.items():
        if value is None:
            del new[part][key]
        else:
            new[part][key] = value
    return new


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (changed("status", phase="Succeeded"), "pending"),
        (changed("status", phase="Pending"), "pending"),
        (changed("status", podIP="10.0.0.1"), "phase, reason and message"),
        (changed("status", qosClass="BestEffort"), "phase, reason and message"),
        (changed("status", conditions=[]), "phase, reason and message"),
        (changed("status", conditions=None), "phase, reason and message"),
        (changed("metadata", labels={"app": "other"}), "metadata"),
        (changed("metadata", labels=None), "metadata"),
        (changed("metadata", annotations={"a": "b"}), "metadata"),
        (changed("metadata", finalizers=["a/b"]), "metadata"),
    ],
)
def test_an_agent_may_write_nothing_else(new: Body, why: str) -> None:
    (found,) = denials(new)
    assert why in found


def test_the_annotation_is_judged_by_the_folder_that_gives_the_right_to_write_it() -> None:
    new = changed("metadata", annotations={STATUS: "{}"})
    assert "metadata" in denials(new).pop()
    assert denials(new, assigns=True) == set()
    running = {**PENDING, "status": {**PENDING["status"], "phase": "Running"}}
    assert denials(failed(running), running, assigns=True) != set()


def test_the_policy_denies_and_fails_closed() -> None:
    assert SPEC["failurePolicy"] == "Fail"
    (rule,) = SPEC["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["UPDATE"], ["pods/status"])
    assert BINDING["spec"]["validationActions"] == ["Deny"]
