"""The kubelet's settings that a PerformanceProfile comes to, and what of them is left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.config import profile_kubelet
from cpupool.core.errors import ConfigError, Severity
from tests.machines import Machine
from tests.profiles import profile_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.config.performance_profile import PerformanceProfile
    from cpupool.core.topology import CPUTopology

TWO_NODES = Machine(nodes=2, cores=8).topology()
TEN_NODES = Machine(sockets=2, nodes=5, cores=2).topology()
SNIPPET = "metadata.annotations.kubeletconfig.experimental"
DRA = "metadata.annotations.performance.openshift.io/dra-resource-management"
POLICY = "spec.numa.topologyPolicy"


def profile(policy: str = "", *, dra: bool = False, mixed: bool = False) -> PerformanceProfile:
    """Make a profile with CPUs 0-1 for the system, 2-3 shared, and 4-7 isolated."""
    annotations = {
        "kubeletconfig.experimental": "{}",
        "performance.openshift.io/dra-resource-management": json.dumps(dra),
    }
    body = {
        "apiVersion": "performance.openshift.io/v2",
        "kind": "PerformanceProfile",
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {
            "cpu": {"reserved": "0-1", "shared": "2-3", "isolated": "4-7"},
            "workloadHints": {"mixedCpus": mixed},
            "numa": {"topologyPolicy": policy} if policy else {},
        },
    }
    return profile_of(json.dumps(body, indent=1))


def settings(
    policy: str = "",
    snippet: Mapping[str, object] | None = None,
    topology: CPUTopology | None = TWO_NODES,
    *,
    dra: bool = False,
) -> dict[str, Any]:
    return profile_kubelet.settings(profile(policy, dra=dra), snippet or {}, topology)


def test_every_cpu_outside_the_default_pool_is_reserved() -> None:
    assert settings() == {"cpuManagerPolicy": "none", "reservedSystemCPUs": "2-15"}
    # Without a machine those of the profile's lists are known.
    assert settings(topology=None)["reservedSystemCPUs"] == "2-7"


def test_what_the_annotation_says_is_carried_over_but_for_what_the_profile_decides() -> None:
    snippet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "allowedUnsafeSysctls": ["net.core.somaxconn"],
        "topologyManagerScope": "pod",
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "false"},
        "topologyManagerPolicy": "restricted",
        "reservedSystemCPUs": "0",
        "systemReserved": {"memory": "2Gi"},
    }

    assert settings(snippet=snippet) == {
        "allowedUnsafeSysctls": ["net.core.somaxconn"],
        "topologyManagerScope": "pod",
        "systemReserved": {"memory": "2Gi"},
        "cpuManagerPolicy": "none",
        "reservedSystemCPUs": "2-15",
    }


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_a_policy_that_refuses_no_pod_leaves_memory_alone(policy: str) -> None:
    assert settings(policy) == {
        "topologyManagerPolicy": policy,
        "cpuManagerPolicy": "none",
        "reservedSystemCPUs": "2-15",
    }


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_a_policy_that_refuses_pods_pins_memory_with_the_operators_amounts(policy: str) -> None:
    # What the memory manager keeps is the sum of what the kubelet keeps: 500 + 500 + 100 MiB.
    assert settings(policy) == {
        "topologyManagerPolicy": policy,
        "memoryManagerPolicy": "Static",
        "kubeReserved": {"memory": "500Mi"},
        "systemReserved": {"memory": "500Mi"},
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "10%",
            "imagefs.available": "15%",
            "nodefs.inodesFree": "5%",
        },
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1100Mi"}}],
        "cpuManagerPolicy": "none",
        "reservedSystemCPUs": "2-15",
    }


@pytest.mark.parametrize(
    ("snippet", "limit"),
    [
        pytest.param({"systemReserved": {"memory": "2Gi", "cpu": "1"}}, "2648Mi", id="MiB"),
        pytest.param({"kubeReserved": {"memory": "1000"}}, "629146600", id="bytes"),
        pytest.param({"evictionHard": {"memory.available": "1G"}}, "2048576000", id="decimal"),
    ],
)
def test_amounts_of_the_annotation_count_in_the_sum(
    snippet: dict[str, dict[str, str]], limit: str
) -> None:
    made = settings("restricted", snippet)

    assert made["reservedMemory"] == [{"numaNode": 0, "limits": {"memory": limit}}]
    for key, amounts in snippet.items():
        assert amounts.items() <= made[key].items()


def test_what_the_annotation_reserves_on_each_node_stays() -> None:
    by_node = [{"numaNode": node, "limits": {"memory": "550Mi"}} for node in (0, 1)]

    assert settings("restricted", {"reservedMemory": by_node})["reservedMemory"] == by_node


@pytest.mark.parametrize(
    ("policy", "topology", "given", "made"),
    [
        pytest.param("best-effort", TEN_NODES, None, {"max-allowable-numa-nodes": "10"}, id="ten"),
        pytest.param(
            "best-effort",
            TEN_NODES,
            {"prefer-closest-numa-nodes": "true"},
            {"max-allowable-numa-nodes": "10", "prefer-closest-numa-nodes": "true"},
            id="beside another option",
        ),
        pytest.param(
            "best-effort",
            TEN_NODES,
            {"max-allowable-numa-nodes": "12"},
            {"max-allowable-numa-nodes": "12"},
            id="the annotation's",
        ),
        pytest.param("best-effort", TWO_NODES, None, None, id="two nodes"),
        pytest.param("best-effort", None, None, None, id="no machine"),
        pytest.param("", TEN_NODES, None, None, id="no policy"),
    ],
)
def test_more_than_eight_numa_nodes_are_allowed(
    policy: str,
    topology: CPUTopology | None,
    given: dict[str, str] | None,
    made: dict[str, str] | None,
) -> None:
    snippet = {"topologyManagerPolicyOptions": given} if given else {}

    assert settings(policy, snippet, topology).get("topologyManagerPolicyOptions") == made


def test_beside_a_driver_for_claims_the_kubelet_aligns_nothing() -> None:
    assert settings("single-numa-node", dra=True) == {
        "topologyManagerPolicy": "none",
        "memoryManagerPolicy": "None",
        "cpuManagerPolicy": "none",
        "reservedSystemCPUs": "2-15",
    }


@pytest.mark.parametrize(
    "key",
    [
        *("kubeReserved", "systemReserved", "evictionHard", "cpuManagerPolicyOptions"),
        "topologyManagerPolicyOptions",
    ],
)
def test_what_is_no_map_in_the_annotation_is_refused_there(key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(snippet={key: "2Gi"})

    (problem,) = raised.value.problems
    assert problem.what == f"{key} is no map, so the Node Tuning Operator refuses the annotation"
    assert problem.path == SNIPPET
    assert str(problem.location) == "p.yaml:7:34"


@pytest.mark.parametrize(
    ("snippet", "said"),
    [
        ({"systemReserved": {"memory": "much"}}, "systemReserved.memory: 'much' is not a quantity"),
        ({"evictionHard": {"memory.available": "5%"}}, "evictionHard.memory.available: '5%'"),
    ],
)
def test_what_is_no_amount_of_memory_is_refused_where_memory_is_pinned(
    snippet: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        settings("restricted", snippet)

    (problem,) = raised.value.problems
    assert problem.what.startswith(said)
    assert (problem.path, problem.remedy) == (SNIPPET, "write an amount of memory, as 100Mi")
    assert settings("best-effort", snippet).items() >= snippet.items()


def notes(
    policy: str = "",
    snippet: Mapping[str, object] | None = None,
    *,
    dra: bool = False,
) -> list[tuple[str, str]]:
    """Return path and fact of each note; all are warnings."""
    found = list(profile_kubelet.notes(profile(policy, dra=dra), snippet or {}))
    assert {note.severity for note in found} <= {Severity.WARNING}
    assert all(note.location for note in found)
    return [(note.path, note.what) for note in found]


@pytest.mark.parametrize("policy", ["", "none", "best-effort", "restricted"])
def test_what_is_carried_over_is_not_noted(policy: str) -> None:
    assert notes(policy, {"topologyManagerScope": "pod", "cpuManagerPolicyOptions": {}}) == []


@pytest.mark.parametrize(
    ("policy", "options", "place", "given"),
    [
        ("single-numa-node", None, POLICY, "full-pcpus-only: true"),
        ("single-numa-node", {"full-pcpus-only": "false"}, SNIPPET, "full-pcpus-only: false"),
        (
            "single-numa-node",
            {"align-by-socket": True},
            SNIPPET,
            "full-pcpus-only: true, align-by-socket: True",
        ),
        ("restricted", {"align-by-socket": "true"}, SNIPPET, "align-by-socket: true"),
    ],
)
def test_options_of_the_cpu_manager_that_the_operator_would_set_are_named(
    policy: str, options: dict[str, object] | None, place: str, given: str
) -> None:
    snippet = {} if options is None else {"cpuManagerPolicyOptions": options}

    ((path, what),) = notes(policy, snippet)

    assert path == place
    assert what.startswith(f"cpuManagerPolicyOptions ({given}) is not carried over")


@pytest.mark.parametrize(
    ("snippet", "named"),
    [
        ({"cpuManagerPolicy": "static"}, "cpuManagerPolicy"),
        (
            {"topologyManagerPolicy": "none", "reservedSystemCPUs": "0", "maxPods": 5},
            "reservedSystemCPUs and topologyManagerPolicy",
        ),
    ],
)
def test_what_the_profile_decides_is_named(snippet: dict[str, object], named: str) -> None:
    said = f"{named} is not carried over: the profile decides it"
    assert notes(snippet=snippet) == [(SNIPPET, said)]


CLAIMS = "a driver gives out CPUs and memory by claims, and cpupool knows no claims"


@pytest.mark.parametrize("policy", ["", "none"])
def test_a_driver_for_claims_is_noted(policy: str) -> None:
    assert notes(policy, dra=True) == [(DRA, CLAIMS)]


@pytest.mark.parametrize("policy", ["best-effort", "single-numa-node"])
def test_the_alignment_that_a_driver_for_claims_ends_is_noted(policy: str) -> None:
    ended = (
        "with the driver the Node Tuning Operator sets topologyManagerPolicy to none, so"
        f" {policy} is not carried over"
    )
    assert notes(policy, dra=True) == [(DRA, CLAIMS), (POLICY, ended)]


def test_claims_and_mixed_cpus_exclude_each_other() -> None:
    both = profile(dra=True, mixed=True)

    with pytest.raises(ConfigError, match="with this and mixed CPUs the Node") as raised:
        list(profile_kubelet.notes(both, {}))

    assert [problem.path for problem in raised.value.problems] == [DRA]
    assert list(profile_kubelet.notes(profile(mixed=True), {})) == []
