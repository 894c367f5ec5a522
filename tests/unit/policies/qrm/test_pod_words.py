"""Katalyst's words in a pod, as the webhook checks them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.policies.qrm.policy import QRMPolicy
from cpupool.webhook.admission.decision import Admitted, Denied, admit
from cpupool.webhook.admission.rules import Rules
from tests.pods import container, pod

RULES = Rules(policies=(QRMPolicy,))
DOMAIN = "katalyst.kubewharf.io"
MEMORY = "resource.katalyst.kubewharf.io/reclaimed_memory"


def saying(**annotations: str) -> dict[str, Any]:
    body = pod(container())
    body["metadata"]["annotations"] = {f"{DOMAIN}/{key}": text for key, text in annotations.items()}
    return body


def at(annotation: str) -> str:
    return f"metadata.annotations[{DOMAIN}/{annotation}]"


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        (
            {"qos_level": "dedicated_core"},
            f"{at('qos_level')}: unknown value dedicated_core; did you mean dedicated_cores?",
        ),
        (
            {"qos_level": "gold"},
            (
                f"{at('qos_level')}: unknown value gold; use shared_cores or dedicated_cores or"
                " reclaimed_cores or system_cores"
            ),
        ),
        (
            {"memory_enhancement": '{"numa_binding": "True"}'},
            f"{at('memory_enhancement')}.numa_binding: unknown value True; did you mean true?",
        ),
        (
            {"memory_enhancement": '{"numa_bindng": "true"}'},
            f"{at('memory_enhancement')}: unknown key numa_bindng; did you mean numa_binding?",
        ),
        (
            {"cpu_enhancement": '{"numa_binding": true}'},
            (
                f"{at('cpu_enhancement')}: this is no JSON object of at most 32 texts; write one,"
                ' as {"numa_binding": "true"}'
            ),
        ),
        (
            {"network_enhancement": '{"namespace_type": "hostns"}'},
            (
                f"{at('network_enhancement')}.namespace_type: unknown value hostns; did you mean"
                " host_ns?"
            ),
        ),
        (
            {"cpu_enhancement": json.dumps(dict.fromkeys(map(str, range(33)), "x"))},
            (
                f"{at('cpu_enhancement')}: this is no JSON object of at most 32 texts; write one,"
                ' as {"numa_binding": "true"}'
            ),
        ),
        *(
            (
                {name: "dedicated_cores"},
                (
                    f"{at(name)}: Katalyst knows no such annotation; did you mean"
                    f" {DOMAIN}/qos_level?"
                ),
            )
            for name in ("qos-level", "qos.level", "qosLevel", "QOS_LEVEL", "qos_levels")
        ),
        (
            {"memory-enhancement": '{"numa_binding": "true"}'},
            (
                f"{at('memory-enhancement')}: Katalyst knows no such annotation; did you mean"
                f" {DOMAIN}/memory_enhancement?"
            ),
        ),
        (
            {"numa_exclusive": "yes"},
            f"{at('numa_exclusive')}: unknown value yes; use true or false",
        ),
    ],
)
def test_a_misspelt_word_is_refused_with_the_right_one(
    annotations: dict[str, str], message: str
) -> None:
    body = saying(**annotations)
    decision = admit(body, RULES)
    assert isinstance(decision, Denied)
    assert decision.message == message
    assert isinstance(admit(body, Rules()), Admitted)
    body["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "1"
    assert isinstance(admit(body, RULES), Admitted)


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"qos_level": "reclaimed_cores"},
        {"memory_enhancement": '{"numa_binding": "false", "rss_overuse_threshold": "0.2"}'},
        {"cpu_enhancement": '{"cpuset_pool": "batch", "katalyst.kubewharf.io/numa_ids": "0-1"}'},
        {"network_enhancement": '{"namespace_type": "anti_host_ns_preferred"}'},
        {"other": "word"},
        {"numa_bind_result": "0", "gpu_enhancement": "{}", "net_class_id": "1"},
        {"pod_role": "etl", "numa_binding": "true"},
    ],
)
def test_what_katalyst_knows_is_admitted(annotations: dict[str, str]) -> None:
    assert admit(saying(**annotations), RULES) == Admitted(saying(**annotations))


def test_what_katalyst_may_have_tomorrow_and_what_nobody_offers_are_warnings() -> None:
    body = saying(cpu_enhancement='{"colour": "red"}')
    body["spec"]["containers"][0]["resources"] = {"limits": {MEMORY: "1Gi"}}
    decision = admit(body, RULES)
    assert isinstance(decision, Admitted)
    key, memory = decision.warnings
    assert key.startswith(f"{at('cpu_enhancement')}: unknown key colour; use ")
    assert memory.startswith(f"spec.containers[0].resources.limits[{MEMORY}]: cpupool offers no")


@pytest.mark.parametrize("policy", ["qrm", "static"])
def test_the_words_count_where_a_pool_file_has_the_policy(policy: str) -> None:
    default = Pool.named("default", "0-7")
    files = [NodePools.of(default, cpu_manager=CPUManager(policy, CPUSet.of(0)))]
    assert (QRMPolicy in Rules().knowing(files).policies) == (policy == "qrm")
