"""Koordinator's classes in a real containerd: who has left an owner's CPUs before it runs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.host.sysfs import Sysfs
from cpupool.policies.koordinator.pod_annotations import QOS_CLASS, RESOURCE_STATUS
from tests.containerd.pods import Kind, Layout
from tests.containerd.test_static_policy import assert_alone, watched
from tests.vm.machine import TIMEOUT_S
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.containerd.node import Node
    from tests.containerd.pods import Hosted

# The first may have to get containerd from a slow mirror.
pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.fixture
def governed(node: Node) -> Iterator[Node]:
    """Return a node whose first CPU is reserved; an owner may have any other."""
    node.configure(Layout.governed(Sysfs.at(node.host.root.sysfs).topology(), "koordinator"))
    with node.agent("nri"):
        yield node


def admit(node: Node, qos: str, cpuset: str = "") -> Hosted:
    """Admit a pod of a class; an LSE or LSR pod requests a CPU."""
    kind = Kind.STATIC if qos in {"LSE", "LSR"} else Kind.DEFAULT
    status = {RESOURCE_STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {}
    return node.admit(kind, annotations=status, labels={QOS_CLASS: qos})


def run(node: Node, qos: str) -> Hosted:
    """Start a pod of a class that shares."""
    pod = admit(node, qos)
    node.launch(pod)
    return pod


def everywhere(node: Node) -> tuple[Hosted, Hosted]:
    """Start an LS pod and a best-effort pod, each of which has all CPUs."""
    pods = run(node, "LS"), run(node, "BE")
    node.await_right(pods)
    return pods


def await_cpus(node: Node, pod: Hosted, cpus: CPUSet) -> None:
    path = node.path(pod)
    eventually(lambda: node.tree.effective(path) == cpus, node.log)


def messages(node: Node, pod: Hosted, reason: str) -> list[str]:
    """Return the messages of a pod's Events."""
    return [
        event["message"]
        for event in list(node.api.events)
        if (event["involvedObject"]["name"], event["reason"]) == (pod.pod.name, reason)
    ]


@pytest.mark.parametrize("assigned", [True, False], ids=["resource-status", "bound-late"])
def test_ls_has_left_an_lsr_pods_cpu_before_it_runs_and_returns_when_it_ends(
    governed: Node, *, assigned: bool
) -> None:
    node, everything = governed, governed.layout.default
    ls, be = everywhere(node)
    last = CPUSet.of(max(everything))
    owner = admit(node, "LSR", str(last) if assigned else "")

    with watched(node, [ls]) as seen:
        node.launch(owner)
        own = node.expected(owner)
        assert node.astray([owner]) == []
    assert_alone(node, owner, own, seen)
    assert len(own) == 1
    assert own == last or not assigned
    assert node.tree.effective(node.path(ls)) == everything - own
    # A best-effort pod stays there, and another enters.
    assert node.record(be).always(everything)
    assert node.record(run(node, "BE")).always(everything)

    node.remove(owner)
    await_cpus(node, ls, everything)


def test_all_have_left_an_lse_pods_cpu_before_it_runs(governed: Node) -> None:
    node, everything = governed, governed.layout.default
    others = everywhere(node)
    owner = admit(node, "LSE")

    with watched(node, list(others)) as seen:
        node.launch(owner)
        own = node.expected(owner)
        assert node.astray([owner]) == []
    assert_alone(node, owner, own, seen)
    assert node.record(run(node, "BE")).always(everything - own)

    node.remove(owner)
    for other in others:
        await_cpus(node, other, everything)


def test_a_pod_with_another_owners_cpu_waits_until_that_has_ended(governed: Node) -> None:
    node = governed
    owner = admit(node, "LSE")
    node.launch(owner)
    own = node.expected(owner)
    forger = admit(node, "LSR", str(own))
    with ThreadPoolExecutor(1) as pool:
        launched = pool.submit(node.launch, forger)
        eventually(lambda: forger.refused, node.log)
        assert f"the scheduler has assigned CPUs {own}, but {own} are not free" in forger.refused[0]
        assert node.record(owner).always(own)
        node.remove(owner)
        launched.result()
    assert node.expected(forger) == own
    assert node.astray([forger]) == []


@pytest.mark.parametrize(
    ("status", "reason", "why"),
    [
        ('{"cpuset": "0-1"}', "UnexpectedAdmissionError", "but the pod requests 1"),
        ('{"cpuset": "0"}', "UnexpectedAdmissionError", "but 0 are reserved"),
        ('{"cpuset": "4096"}', "UnexpectedAdmissionError", "are not the CPU manager's"),
        ('{"cpuset": "1"', "CPUAnnotationUnreadable", "resource-status"),
    ],
    ids=["too big", "reserved", "no CPU of the node", "broken"],
)
def test_a_forged_set_gives_no_cpu_from_the_first_instruction_on(
    governed: Node, status: str, reason: str, why: str
) -> None:
    node = governed
    owner = admit(node, "LSE")
    node.launch(owner)
    shared = node.layout.default - node.expected(owner)
    forger = node.admit(
        Kind.STATIC, annotations={RESOURCE_STATUS: status}, labels={QOS_CLASS: "LSR"}
    )

    node.launch(forger)

    eventually(lambda: messages(node, forger, reason), node.log)
    assert why in messages(node, forger, reason)[0]
    assert node.record(forger).always(shared)
    assert node.record(owner).always(node.expected(owner))
