from __future__ import annotations

from cpupool.webhook.admission.decision import Admitted, Denied, admit, admit_update
from tests.pods import container, pod, process
from tests.unit.webhook.admission.asked import ANNOTATED, RULES, asking, processes, variable

# Updates.


def test_an_update_is_refused_for_what_it_brings_only() -> None:
    bad = pod(asking(env=[variable("SHARED_CPUS")]))
    labelled = {**bad, "metadata": {**bad["metadata"], "labels": {"a": "b"}}}
    assert admit_update(labelled, bad, RULES) == Admitted(labelled)

    debugger = container("debug", env=[variable("EXCLUSIVE_CPUS")])
    debugged = {**bad, "spec": {**bad["spec"], "ephemeralContainers": [debugger]}}
    decision = admit_update(debugged, bad, RULES)
    assert isinstance(decision, Denied)
    assert decision.message == (
        "spec.ephemeralContainers[0].env[0]: EXCLUSIVE_CPUS is set by cpupool alone; remove it"
    )


def test_an_update_completes_nothing_and_tells_that_processes_stay() -> None:
    old = pod(asking(), processes=processes(process("a")))
    new = pod(asking(), processes=processes(process("b")))
    assert admit_update(new, old, RULES) == Admitted(
        new, (f"{ANNOTATED}: read when a pod is created; create the pod again",)
    )
    assert admit_update(old, old, RULES) == Admitted(old)


def test_the_annotation_may_go_that_a_command_was_compiled_from() -> None:
    admitted = admit(pod(asking(), processes=processes(process("a"))), RULES)
    assert isinstance(admitted, Admitted)
    bare = {**admitted.body, "metadata": {**admitted.body["metadata"], "annotations": {"a": "b"}}}
    decision = admit_update(bare, admitted.body, RULES)
    assert isinstance(decision, Admitted)
    assert decision.body == bare
