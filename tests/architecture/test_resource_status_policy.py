"""An agent may write into the pods of its own node which CPUs it chose, and nothing else of them.

The expressions run in another implementation of CEL than the API server's.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml

from cpupool.core.cpuset import CPUSet
from cpupool.policies.koordinator.pod_annotations import RESOURCE_STATUS, resource_status
from tests.apiserver import patches
from tests.architecture import authorizers

FILE = Path(__file__).parents[2] / "daemonsets/resource-status/admission-policy.yaml"
POLICY, BINDING = yaml.safe_load_all(FILE.read_text())
SPEC = POLICY["spec"]
CONDITIONS = [cel.compile(each["expression"]) for each in SPEC["matchConditions"]]
VARIABLES = {each["name"]: cel.compile(each["expression"]) for each in SPEC["variables"]}
VALIDATIONS = {each["message"]: cel.compile(each["expression"]) for each in SPEC["validations"]}
AGENT = "system:serviceaccount:cpupool:cpupool-agent"
NODE_NAME = "authentication.kubernetes.io/node-name"
OURS = resource_status(CPUSet.parse("2-3"))

Body = dict[str, Any]

RUNNING: Body = {
    "metadata": {
        "name": "web",
        "uid": "1-2-3",
        "resourceVersion": "7",
        "labels": {"app": "web"},
        "managedFields": [{"manager": "kubelet"}],
    },
    "spec": {"nodeName": "node-a"},
    "status": {"phase": "Running", "qosClass": "Guaranteed"},
}


def changed(changes: Body, before: Body = RUNNING) -> Body:
    """Return a pod after the agent's patch, with more changes; None removes a field."""
    ours = {"metadata": {"annotations": {RESOURCE_STATUS: OURS}, "managedFields": [{"a": "b"}]}}
    merged: Body = patches.merged(patches.merged(copy.deepcopy(before), ours), changes)
    return merged


def annotated(annotations: Body) -> Body:
    before: Body = copy.deepcopy(RUNNING)
    before["metadata"]["annotations"] = annotations
    return before


def denials(
    new: Body, old: Body = RUNNING, user: Body | None = None, *, fails: bool = False
) -> set[str]:
    """Return why the API server denies a change; nothing if it allows it.

    Args:
        new: the pod.
        old: the pod before.
        user: who asks; None for the agent of the pod's node.
        fails: whether the agent has the right of the folder fail-misfits, too.
    """
    agent = {"username": AGENT, "extra": {NODE_NAME: ["node-a"]}}
    context = authorizers.context(
        {"cpupool.io/pods/fail"} if fails else set(),
        request={"userInfo": user or agent},
        object=new,
        oldObject=old,
    )
    if not all(condition.execute(context) for condition in CONDITIONS):
        return set()
    context.add_variable(
        "variables", {name: variable.execute(context) for name, variable in VARIABLES.items()}
    )
    return {why for why, allows in VALIDATIONS.items() if not allows.execute(context)}


@pytest.mark.parametrize(
    "before", [{}, {"a": "b"}, {RESOURCE_STATUS: resource_status(CPUSet.parse("4-5")), "a": "b"}]
)
def test_an_agent_writes_its_choice_and_replaces_its_own(before: Body) -> None:
    old = annotated(before) if before else RUNNING
    assert denials(changed({}, old), old) == set()


def test_no_agent_replaces_what_a_scheduler_has_assigned() -> None:
    old = annotated({RESOURCE_STATUS: '{"cpuset":"2-3"}'})
    assert denials(changed({}, old), old) == {
        "an agent may not replace what a scheduler has assigned"
    }


@pytest.mark.parametrize("extra", [{}, {NODE_NAME: ["node-b"]}, {NODE_NAME: ["node-b", "node-a"]}])
def test_no_agent_writes_a_pod_of_another_node(extra: Body) -> None:
    user = {"username": AGENT, "extra": extra}
    assert denials(changed({}), user=user) == {"an agent may write only pods of its own node"}


def test_no_other_account_is_asked() -> None:
    kubelet = {"username": "system:node:node-a"}
    assert denials(changed({"status": {"phase": "Failed"}}), user=kubelet) == set()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"metadata": {"annotations": {RESOURCE_STATUS: '{"cpuset":"2-3"}'}}}, "chosenBy"),
        ({"metadata": {"annotations": {RESOURCE_STATUS: None}}}, "chosenBy"),
        ({"metadata": {"annotations": {"a": "b"}}}, "no other annotation"),
        ({"metadata": {"labels": {"app": "other"}}}, "save the annotation"),
        ({"metadata": {"labels": None}}, "save the annotation"),
        ({"metadata": {"finalizers": ["a/b"]}}, "save the annotation"),
        ({"status": {"phase": "Failed"}}, "the status of a pod"),
        ({"status": {"reason": "a"}}, "the status of a pod"),
        ({"status": {"qosClass": None}}, "the status of a pod"),
    ],
)
def test_an_agent_writes_nothing_else(changes: Body, why: str) -> None:
    (found,) = denials(changed(changes))
    assert why in found


@pytest.mark.parametrize("after", [{"a": "c"}, {}])
def test_other_annotations_stay(after: Body) -> None:
    old = annotated({"a": "b"})
    new = changed({"metadata": {"annotations": after or {"a": None}}}, old)
    assert denials(new, old) == {"an agent may write no other annotation of a pod"}


def test_a_failing_pod_is_judged_by_the_folder_that_gives_the_right_to_fail_it() -> None:
    failed = patches.merged(RUNNING, {"status": {"phase": "Failed"}})
    assert denials(failed) != set()
    assert denials(failed, fails=True) == set()
    assert denials(changed({"status": {"phase": "Failed"}}), fails=True) != set()


def test_the_policy_denies_and_fails_closed() -> None:
    assert SPEC["failurePolicy"] == "Fail"
    (rule,) = SPEC["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["UPDATE"], ["pods/status"])
    assert BINDING["spec"]["validationActions"] == ["Deny"]
