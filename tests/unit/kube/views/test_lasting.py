"""The resources by which a scheduler decides whether it must have seen a pod (`Container.lasting`).

The rules are those of AreExclusiveForPod in kubernetes-sigs/scheduler-plugins.
"""

from __future__ import annotations

from typing import Any

import pytest

from cpupool.kube import views
from tests.unit.kube.views.bodies import NAMES, body

POOL = NAMES.resource("exclusive_a")
WHOLE = {"cpu": "2", "memory": "1Gi"}


def lasting(*containers: dict[str, Any], **more: Any) -> list[set[str]]:
    return [set(one.lasting) for one in views.pod(body(*containers, **more), NAMES).containers]


def limited(amounts: dict[str, str], name: str = "main", **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": amounts}, **more}


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        pytest.param(WHOLE, {"cpu", "memory"}, id="Guaranteed with whole CPUs"),
        pytest.param(WHOLE | {"cpu": "1500m"}, {"memory"}, id="Guaranteed with a part of a CPU"),
        pytest.param(
            WHOLE | {"hugepages-2Mi": "4Mi"}, {"cpu", "memory", "hugepages-2Mi"}, id="huge pages"
        ),
        pytest.param({"cpu": "2"}, set(), id="Burstable"),
        pytest.param({"cpu": "2", "hugepages-2Mi": "4Mi"}, set(), id="Burstable with huge pages"),
        pytest.param({}, set(), id="nothing"),
        pytest.param({POOL: "1"}, {POOL}, id="a pool"),
        pytest.param({"vendor.example/nic": "1"}, {"vendor.example/nic"}, id="another plugin"),
        pytest.param({"ephemeral-storage": "1Gi"}, set(), id="storage"),
        pytest.param({"requests.kubernetes.io/x": "1"}, set(), id="a prefix of Kubernetes"),
    ],
)
def test_a_container_holds_devices_and_guaranteed_amounts(
    limits: dict[str, str], names: set[str]
) -> None:
    assert lasting(limited(limits)) == [names]


def test_an_init_container_holds_nothing_when_it_has_ended() -> None:
    held = lasting(
        limited(WHOLE),
        spec={
            "initContainers": [
                limited({**WHOLE, POOL: "1"}, "setup"),
                limited({**WHOLE, POOL: "1"}, "proxy", restartPolicy="Always"),
            ],
            "ephemeralContainers": [{"name": "debug"}],
        },
    )
    assert held == [set(), {"cpu", "memory", POOL}, {"cpu", "memory"}, set()]


def test_a_request_without_a_limit_counts() -> None:
    assert lasting({"name": "main", "resources": {"requests": {POOL: "1"}}}) == [{POOL}]


def test_the_class_that_the_api_server_has_set_counts() -> None:
    assert lasting(limited(WHOLE), status={"qosClass": "Burstable"}) == [set()]
