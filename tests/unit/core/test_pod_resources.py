"""What `resources` of a pod's body come to, for the webhook and for the agent alike."""

from __future__ import annotations

from typing import Any

import pytest

from cpupool.core.errors import ManifestError, QuantityError
from cpupool.core.names import Names
from cpupool.core.pod_resources import (
    PodResources,
    Requirements,
    can_be_extended,
    is_of_kubernetes,
    pod_limit_milli,
)
from cpupool.core.quantity import Quantity
from cpupool.core.workloads import ContainerKind, QoSClass
from cpupool.kube import views
from cpupool.webhook.admission.pod_requests import PodRequests
from tests import builders
from tests.pods import container, pod

NAMES = Names()
SHARED = "nokia.k8s.io/shared-a"


def read(requests: dict[str, object], limits: dict[str, object]) -> Requirements:
    return Requirements.read(requests, limits, NAMES, "spec.resources")


def test_a_wrong_amount_is_refused_where_it_is_needed_with_its_place() -> None:
    asked = read({}, {"cpu": "2", "memory": "much", SHARED: "1.5"})

    assert (asked.limit_milli, asked.whole_cpus) == (2000, 2)
    with pytest.raises(QuantityError, match="an extended resource") as raised:
        asked.pools(NAMES)
    assert raised.value.path == f"spec.resources.limits.{SHARED}"


def test_null_and_the_amounts_of_others_are_none() -> None:
    asked = read({"cpu": None, SHARED: "0"}, {"memory": None, "example.com/gpu": []})

    assert asked == read({SHARED: "0"}, {})
    assert asked.pools(NAMES) == {}


@pytest.mark.parametrize(
    "amount", ["1k", "1000", "1e3", 1000, 1000.0, "1000000m", "0.5k", "0", " 1", [], True, 2**63]
)
def test_the_agent_and_the_webhook_read_the_same_amount(amount: Any) -> None:
    body = pod(container(resources={"requests": {SHARED: amount}, "limits": {SHARED: amount}}))
    body["metadata"]["uid"] = "u"

    (webhooks,) = PodRequests.read(body, NAMES).containers
    if webhooks.readable:
        assert views.pod(body, NAMES).containers[0].requests == webhooks.requests
    else:
        with pytest.raises(ManifestError, match="is not a quantity"):
            views.pod(body, NAMES)


@pytest.mark.parametrize(
    ("name", "can"),
    [
        ("resource.katalyst.kubewharf.io/net_bandwidth", True),
        ("example.com/NIC-1.a", True),
        (f"{'a' * 244}/b", True),
        (f"{'a' * 245}/b", False),
        (f"a/{'b' * 63}", True),
        (f"a/{'b' * 64}", False),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("kubernetes.io/a", False),
        ("a.kubernetes.io/b", False),
        ("requests.example.com/a", False),
        ("requestsexample.com/a", True),
        ("/a", False),
        ("a/", False),
        ("a/b/c", False),
        ("A.com/b", False),
        ("a..com/b", False),
        ("a/_b", False),
        ("a/b\n", False),
    ],
)
def test_what_can_be_the_name_of_an_extended_resource(name: str, can: bool) -> None:
    assert can_be_extended(name) is can


@pytest.mark.parametrize(
    ("resource", "of_kubernetes"),
    [
        ("cpu", True),
        ("ephemeral-storage", True),
        ("pods", True),
        ("hugepages-2Mi", True),
        ("attachable-volumes-aws-ebs", True),
        ("requests.cpu", True),
        ("storage.kubernetes.io/x", True),
        ("NIC", False),
        ("nic-2", False),
        ("example.com/nic", False),
        ("resource.katalyst.kubewharf.io/net_bandwidth", False),
    ],
)
def test_resources_of_kubernetes(resource: str, of_kubernetes: bool) -> None:
    assert is_of_kubernetes(resource) is of_kubernetes


@pytest.mark.parametrize(
    ("limits", "total"),
    [
        ([(ContainerKind.APP, 2000), (ContainerKind.APP, 500)], 2500),
        # A sidecar runs beside those that come after it.
        (
            [(ContainerKind.SIDECAR, 300), (ContainerKind.INIT, 3000), (ContainerKind.APP, 500)],
            3300,
        ),
        ([(ContainerKind.INIT, 300), (ContainerKind.APP, 500)], 500),
        ([(ContainerKind.APP, 500), (ContainerKind.EPHEMERAL, None)], 500),
        ([(ContainerKind.APP, 500), (ContainerKind.APP, None)], None),
    ],
)
def test_a_pods_limit_is_that_of_its_largest_moment(
    limits: list[tuple[ContainerKind, int | None]], total: int | None
) -> None:
    containers = [builders.container(kind=kind, cpu=milli) for kind, milli in limits]

    found = pod_limit_milli(Requirements(), None, QoSClass.BURSTABLE, containers)
    assert found == total
    overhead = Quantity.read("250m", "spec.overhead.cpu")
    with_it = pod_limit_milli(Requirements(), overhead, QoSClass.BURSTABLE, containers)
    assert with_it == (None if total is None else total + 250)


def test_a_pod_has_the_limit_of_its_own_resources() -> None:
    pod_level = read({}, {"cpu": "4"})
    containers = [builders.container(cpu=500), builders.container()]

    assert pod_limit_milli(pod_level, None, QoSClass.BURSTABLE, containers) == 4000
    assert pod_limit_milli(pod_level, None, QoSClass.BEST_EFFORT, containers) is None


APP, INIT = ContainerKind.APP, ContainerKind.INIT


@pytest.mark.parametrize(
    ("requests", "limits", "containers", "milli"),
    [
        pytest.param({}, {}, [(APP, "500m")], None, id="no resources of its own"),
        pytest.param({"cpu": "1"}, {"cpu": "4"}, [(APP, "500m")], 1000, id="its request"),
        pytest.param({}, {"cpu": "4"}, [(APP, "500m"), (APP, "1")], 1500, id="the containers'"),
        pytest.param({}, {"cpu": "4"}, [(INIT, "3"), (APP, "1")], 3000, id="an init container's"),
        pytest.param({}, {"cpu": "4"}, [], 4000, id="its limit"),
        pytest.param({}, {"cpu": "4"}, [(APP, None)], 4000, id="its limit where none requests"),
        pytest.param(
            {},
            {"cpu": "4"},
            [(ContainerKind.EPHEMERAL, "1")],
            4000,
            id="an ephemeral one's is none",
        ),
    ],
)
def test_a_pods_own_request_is_completed_as_the_api_server_does(
    requests: dict[str, object],
    limits: dict[str, object],
    containers: list[tuple[ContainerKind, str | None]],
    milli: int | None,
) -> None:
    parts = tuple((kind, read({"cpu": asked}, {})) for kind, asked in containers)

    assert PodResources(read(requests, limits), parts).level_milli == milli


def test_a_completed_request_is_found_where_the_pods_limit_stands() -> None:
    resources = PodResources(read({}, {"memory": "1Gi"}), ((APP, read({"memory": "64Mi"}, {})),))

    level = resources.level("memory")

    assert level
    assert level.value == 64 * 2**20
    assert level.path == "spec.resources.limits.memory"
