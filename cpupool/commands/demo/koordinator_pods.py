"""Pods of Koordinator's classes for `cpupool demo`, some with CPUs that a scheduler assigned."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from cpupool.commands.demo.manifests import MILLI, SHARING, pod, whole
from cpupool.core import default_pool
from cpupool.core.cpuset import CPUSet
from cpupool.policies.koordinator.pod_annotations import QOS_CLASS, RESOURCE_STATUS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cpupool.commands.demo.samples import Samples
    from cpupool.core.topology import CPUTopology
    from cpupool.kube.views import Body


class Owner(NamedTuple):
    """A pod that is to own CPUs.

    Attributes:
        name: its name.
        forms: each makes its manifest, by name and number of CPUs; the first that fits is used.
        sizes: the numbers of CPUs to try, in this order.
    """

    name: str
    forms: Iterable[Callable[[str, int], Body]]
    sizes: Iterable[int]


def add(samples: Samples) -> None:
    """Add pods of each class to the samples for a pool file whose policy reads classes."""
    machine, own = samples.machine, samples.own
    shared = default_pool.online(samples.pools, machine) - own
    samples.bodies += sharing(machine, shared)
    for name, forms, sizes in owners(machine, own):
        samples.add(forms, name, sizes)
    if shared:
        samples.bodies.append(forged(shared))
    else:
        samples.left_out.append("pods near, forged: a pod can own each CPU of the policy")


def sharing(machine: CPUTopology, shared: CPUSet) -> Iterator[Body]:
    """Yield pods of each class that shares CPUs.

    Args:
        machine: the machine.
        shared: the CPUs that no pod can own.
    """
    yield _pod("ls", "LS", SHARING)
    if shared:
        node = machine.cpus[shared.first].node or 0
        near = {"node": node, "resources": {"cpu": f"{MILLI}m"}}
        yield _pod("near", "LS", SHARING, {"numaNodeResources": [near]})
    yield _pod("be", "BE", {})
    yield _pod("burstable", "", SHARING)


def owners(machine: CPUTopology, own: CPUSet) -> Iterator[Owner]:
    """Yield a pod with assigned CPUs, and two that wait until this one ends.

    Args:
        machine: the machine.
        own: the CPUs that pods can own.
    """
    # With a strict topology policy the CPUs of one pod may have to lie on one NUMA node.
    nodes = (
        CPUSet(cpu for cpu in own if machine.cpus[cpu].node == node)
        for node in sorted(machine.nodes)
    )
    assigned = [_assigned(cpus) for cpus in (own, *nodes) if cpus]
    yield Owner("assigned", assigned, (len(own),))
    share = max(1, len(own) // 3)
    sizes: Sequence[int] = (*range(share, 0, -1), *range(share + 1, len(own) + 1))
    for name, qos in (("late", "LSR"), ("sole", "LSE")):
        yield Owner(name, (_owner(qos),), sizes)


def forged(shared: CPUSet) -> Body:
    """Return a pod whose author wrote the annotation, in place of a scheduler."""
    return _pod("forged", "LSE", whole(1), {"cpuset": str(shared.first)})


def _owner(qos: str) -> Callable[[str, int], Body]:
    return lambda name, cpus: _pod(name, qos, whole(cpus))


def _assigned(cpus: CPUSet) -> Callable[[str, int], Body]:
    """Return a function that makes an LSR pod to which a scheduler has assigned some CPUs."""
    status = {"cpuset": str(cpus)}
    return lambda name, _size: _pod(name, "LSR", whole(len(cpus)), status)


def _pod(
    name: str, qos: str, resources: Mapping[str, Any], status: Mapping[str, Any] | None = None
) -> Body:
    body = pod(name, [{"name": "main", "resources": resources}])
    if qos:
        body["metadata"]["labels"] = {QOS_CLASS: qos}
    if status:
        body["metadata"]["annotations"] = {RESOURCE_STATUS: json.dumps(status)}
    return body
