"""What the kubelet makes of the native cpu of pods and containers."""

from __future__ import annotations

from typing import Any

import pytest

from cpupool.core.errors import ManifestError
from cpupool.core.names import Names
from cpupool.kube import views


def asks(name: str = "main", **resources: Any) -> dict[str, Any]:
    """Make a container; `cpu` is its limit, `request` its request, and memory comes with both."""
    limits = {"cpu": resources["cpu"], "memory": "1Gi"} if "cpu" in resources else {}
    requests = {"cpu": resources["request"]} if "request" in resources else {}
    more = {"restartPolicy": "Always"} if resources.get("sidecar") else {}
    return {"name": name, "resources": {"limits": limits, "requests": requests}, **more}


def pod(*containers: dict[str, Any], init: Any = (), **spec: Any) -> dict[str, Any]:
    annotations = spec.pop("annotations", {})
    return {
        "metadata": {"name": "web", "uid": "web-uid", "annotations": annotations},
        "spec": {"containers": list(containers), "initContainers": list(init), **spec},
    }


@pytest.mark.parametrize(
    ("body", "milli"),
    [
        pytest.param(pod(asks()), None, id="no limit"),
        pytest.param(pod(asks(cpu="2"), asks("other", cpu="500m")), 2500, id="the sum"),
        pytest.param(pod(asks(cpu="2"), asks("other")), None, id="one without a limit"),
        pytest.param(pod(asks(cpu="2", request="1")), 2000, id="Burstable, all limited"),
        pytest.param(
            pod(asks(cpu="1"), init=[asks("setup", cpu="3")]), 3000, id="a larger init container"
        ),
        pytest.param(
            pod(asks(cpu="1"), init=[asks("proxy", cpu="500m", sidecar=True), asks("s", cpu="1")]),
            1500,
            id="a sidecar counts beside the others",
        ),
        pytest.param(pod(asks(cpu="1"), init=[asks("setup")]), None, id="an init without a limit"),
        pytest.param(pod(asks(cpu="1"), overhead={"cpu": "250m"}), 1250, id="overhead"),
        pytest.param(
            pod(asks(), resources={"limits": {"cpu": "3", "memory": "1Gi"}}), 3000, id="pod-level"
        ),
        pytest.param(pod(asks(cpu="0.0005")), 1, id="rounded up"),
        pytest.param(pod(asks(cpu="0")), None, id="zero is no limit"),
        pytest.param(
            pod(asks(cpu="1"), ephemeralContainers=[{"name": "debug"}]),
            1000,
            id="an ephemeral container has none",
        ),
    ],
)
def test_a_pod_is_limited_as_the_kubelet_limits_it(body: dict[str, Any], milli: int | None) -> None:
    assert views.pod(body, Names()).limit_milli == milli


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        pytest.param(pod(asks(cpu="2")), 2, id="Guaranteed"),
        pytest.param(pod(asks(cpu="1500m")), 0, id="a fraction"),
        pytest.param(pod(asks(cpu="2", request="1")), 0, id="Burstable"),
        pytest.param(pod(asks()), 0, id="nothing"),
    ],
)
def test_the_static_cpu_manager_gives_whole_cpus_to_guaranteed_pods(
    body: dict[str, Any], whole: int
) -> None:
    assert views.pod(body, Names()).containers[0].whole_cpus == whole


@pytest.mark.parametrize(
    ("containers", "equal"),
    [
        pytest.param([asks("a", cpu="2"), asks("b")], (2, 0), id="Burstable"),
        pytest.param([asks("a", cpu="2"), asks("b", cpu="1")], (2, 1), id="Guaranteed"),
        pytest.param([asks("a", cpu="2", request="1"), asks("b")], (0, 0), id="another limit"),
        pytest.param([asks("a", cpu="1500m"), asks("b")], (0, 0), id="a fraction"),
    ],
)
def test_an_equal_limit_counts_in_a_pod_of_any_class(
    containers: list[dict[str, Any]], equal: tuple[int, ...]
) -> None:
    read = views.pod(pod(*containers), Names())
    assert tuple(each.equal_cpus for each in read.containers) == equal


@pytest.mark.parametrize(
    "resources", [{"limits": {"cpu": "4"}}, {"requests": {"memory": "1Gi"}}], ids=["cpu", "memory"]
)
def test_nor_does_it_in_a_pod_with_resources_of_its_own(resources: dict[str, Any]) -> None:
    read = views.pod(pod(asks("a", cpu="2"), resources=resources), Names())
    assert [(each.whole_cpus, each.equal_cpus) for each in read.containers] == [(0, 0)]


@pytest.mark.parametrize(
    ("annotations", "balanced"),
    [
        pytest.param({}, (True, True), id="none"),
        pytest.param({"cpu-load-balancing.crio.io": "disable"}, (False, False), id="CRI-O's"),
        pytest.param({"cpu-load-balancing.crio.io/a": "disable"}, (False, True), id="of one"),
        pytest.param({"nokia.k8s.io/cpu-load-balancing": "disable"}, (False, False), id="ours"),
        pytest.param({"nokia.k8s.io/cpu-load-balancing": "enable"}, (True, True), id="enabled"),
    ],
)
def test_load_balancing_is_off_where_the_pod_asks_for_it(
    annotations: dict[str, str], balanced: tuple[bool, bool]
) -> None:
    read = views.pod(pod(asks("a"), asks("b"), annotations=annotations), Names())
    assert tuple(one.balanced for one in read.containers) == balanced


@pytest.mark.parametrize(
    ("text", "split", "fault"),
    [
        pytest.param("true", True, "", id="yes"),
        pytest.param("false", False, "", id="no"),
        pytest.param("yes", False, "nokia.k8s.io/cpus-per-container is 'yes'", id="unknown"),
    ],
)
def test_cpus_are_split_where_a_pod_of_koordinators_asks_for_it(
    text: str, split: bool, fault: str
) -> None:
    body = pod(asks("a"), annotations={"nokia.k8s.io/cpus-per-container": text})
    assert views.pod(body, Names()).orchestration is None

    body["metadata"]["labels"] = {"koordinator.sh/qosClass": "LSR"}
    read = views.pod(body, Names()).orchestration
    assert read is not None
    assert read.split is split
    assert read.fault.startswith(fault)
    assert bool(read.fault) is bool(fault)


def test_an_amount_that_is_none_is_refused_with_the_field() -> None:
    with pytest.raises(ManifestError, match=r"spec\.containers\[0\]\.resources\.limits\.cpu"):
        views.pod(pod(asks(cpu="two")), Names())


def test_amounts_that_say_nothing_of_cpus_are_not_looked_at() -> None:
    body = pod({"name": "main", "resources": {"limits": {"cpu": "2", "memory": "much"}}})
    body["status"] = {"qosClass": "Guaranteed"}
    read = views.pod(body, Names())
    assert (read.limit_milli, read.containers[0].whole_cpus) == (2000, 2)


def test_an_amount_of_null_is_none() -> None:
    body = pod({"name": "main", "resources": {"limits": {"cpu": None}}}, overhead={"cpu": None})
    body["status"] = {"qosClass": "Burstable"}
    assert views.pod(body, Names()).limit_milli is None


FOUR = {"cpu": "4", "memory": "8Gi"}
LEVEL = {"requests": FOUR, "limits": FOUR}


@pytest.mark.parametrize(
    ("container", "cpus"),
    [
        pytest.param(asks(cpu="2"), 2, id="limits alone"),
        pytest.param(asks(cpu="2", request="2"), 2, id="equal requests"),
        pytest.param(asks(cpu="2", request="1"), 0, id="another request of cpu"),
        pytest.param(asks(cpu="1500m"), 0, id="a part of a CPU"),
        pytest.param(asks(), 0, id="nothing"),
        pytest.param({"name": "main", "resources": {"limits": {"cpu": "2"}}}, 0, id="no memory"),
        pytest.param(
            {
                "name": "main",
                "resources": {
                    "limits": {"cpu": "2", "memory": "2Gi"},
                    "requests": {"memory": "1Gi"},
                },
            },
            0,
            id="another request of memory",
        ),
    ],
)
def test_a_whole_container_of_a_pod_with_resources_of_its_own_can_own_cpus(
    container: dict[str, Any], cpus: int
) -> None:
    found = views.pod(pod(container, resources=LEVEL), Names())
    (main,) = found.containers
    assert (found.level_cpus, main.level_cpus) == (4, cpus)
    assert main.whole_cpus == main.equal_cpus == 0
    alone = views.pod(pod(container), Names())
    assert (alone.level_cpus, alone.containers[0].level_cpus) == (0, 0)


@pytest.mark.parametrize(
    ("level", "cpus", "of_container"),
    [
        pytest.param({key: {**FOUR, "cpu": "3500m"} for key in LEVEL}, 0, 2, id="a part of a CPU"),
        pytest.param({key: {"cpu": "4"} for key in LEVEL}, 0, 0, id="no memory, so Burstable"),
        pytest.param({"limits": FOUR}, 0, 0, id="the request of the container, so Burstable"),
    ],
)
def test_only_a_guaranteed_pod_can_have_a_bubble(
    level: dict[str, Any], cpus: int, of_container: int
) -> None:
    found = views.pod(pod(asks(cpu="2"), resources=level), Names())
    assert (found.level_cpus, found.containers[0].level_cpus) == (cpus, of_container)


def test_an_ephemeral_container_owns_nothing_in_a_bubble() -> None:
    body = pod(asks(), resources=LEVEL, ephemeralContainers=[asks("debug", cpu="1")])
    assert [each.level_cpus for each in views.pod(body, Names()).containers] == [0, 0]
