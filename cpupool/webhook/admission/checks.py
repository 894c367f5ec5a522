"""The rules that a pod must keep to get what it requests from the pools."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from cpupool.core import pools
from cpupool.core.errors import Problem, QuantityError, Severity
from cpupool.core.names import (
    CPU_POOLS,
    ENABLE_SHARED_CPUS,
    OPENSHIFT_ISOLATED_CPUS,
    OPENSHIFT_SHARED_CPUS,
    STARTER,
    is_reserved_variable,
)
from cpupool.core.pod_resources import CPU
from cpupool.core.pools import MILLI_PER_CPU, PoolKind
from cpupool.core.requests import ResourceKind
from cpupool.core.visible import shown
from cpupool.webhook.admission import mixed_cpus, starter_argv
from cpupool.webhook.admission.annotation import MAX_ANNOTATIONS_BYTES
from cpupool.webhook.admission.rules import MOST_THREADS, CFSQuotas

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cpupool.core.names import Names
    from cpupool.core.quantity import Quantity
    from cpupool.webhook.admission.annotation import ContainerProcesses
    from cpupool.webhook.admission.pod_requests import ContainerRequests, PodRequests
    from cpupool.webhook.admission.rules import Rules

_SHOWN_POOLS: Final = 8
_OPENSHIFTS: Final = (OPENSHIFT_SHARED_CPUS, OPENSHIFT_ISOLATED_CPUS)
"""Variables that containers with OpenShift's resource get."""


def own_command(container: ContainerRequests) -> list[str] | None:
    """Return a container's own command with its arguments.

    In a pod that was admitted before, it stands after the process starter. None where the starter's
    arguments do not come from admission.
    """
    words = [*container.command, *container.args]
    if container.command[:1] != (STARTER,):
        return words
    return starter_argv.command_in(words[1:])


def replaced_cpu(
    container: ContainerRequests, rules: Rules
) -> Iterator[tuple[str, Quantity | None, int | None]]:
    """Find each native cpu amount of a container with pools that admission must replace.

    Yields:
        `requests` or `limits`, the present amount, and the new milli-CPUs; None for no amount.
    """
    limit, request = container.written.of(CPU)
    for part, amount, milli in (
        ("requests", request, 0),
        ("limits", limit, rules.limit_milli(container)),
    ):
        if not (milli is None if amount is None else amount.is_milli(milli)):
            yield part, amount, milli


def check(pod: PodRequests, rules: Rules) -> Iterator[Problem]:
    """Find everything wrong with a pod that requests pools, except syntax errors."""
    yield from _annotations_size(pod)
    for container in (*pod.containers, *pod.ephemeral):
        yield from _variables(container)
    for container in pod.containers:
        yield from _pools(container, rules)
        if container.readable:
            yield from _native_cpu(container, pod, rules)
    yield from mixed_cpus.check(pod)
    by_name = {container.name: container for container in pod.containers}
    for entry in pod.entries.values():
        yield from _entry(entry, by_name.get(entry.container), rules)


def check_names(pod: PodRequests, names: Names) -> Iterator[Problem]:
    """Find what looks like a resource or an annotation of ours and is none, in any pod."""
    for key in pod.annotations:
        if meant := names.meant_annotation(key):
            yield Problem(
                "cpupool does not read this annotation",
                f"did you mean {meant}?",
                Severity.WARNING,
                f"metadata.annotations[{shown(key)}]",
            )
    for container in pod.containers:
        for resource in container.doubtful:
            why = f"name does not begin with {PoolKind.EXCLUSIVE.value} or {PoolKind.SHARED.value}"
            remedy = "correct it if a pool is meant"
            if meant := names.meant(resource):
                why = f"domain is not {meant.partition('/')[0]}"
                remedy = f"did you mean {meant}?"
            yield Problem(
                f"this is taken for another plugin's device, as its {why}",
                remedy,
                Severity.WARNING,
                f"{container.path}.resources.limits[{shown(resource)}]",
            )


def check_commands(pod: PodRequests) -> Iterator[Problem]:
    """Find why the process starter cannot be put before a command; only for new pods.

    No update can change a command, but an update may remove the annotation that it came from.
    """
    for container in pod.containers:
        if container.name not in pod.entries:
            yield from _command(container)


def _annotations_size(pod: PodRequests) -> Iterator[Problem]:
    size = sum(
        len(text.encode(errors="surrogatepass"))
        for pair in pod.annotations.items()
        for text in pair
    )
    if size > MAX_ANNOTATIONS_BYTES:
        yield Problem(
            f"the annotations have {size} bytes, and Kubernetes takes {MAX_ANNOTATIONS_BYTES}",
            "shorten them",
            path="metadata.annotations",
        )


def _variables(container: ContainerRequests) -> Iterator[Problem]:
    for place, (name, value) in enumerate(container.env):
        path = f"{container.path}.env[{place}]"
        if is_reserved_variable(name) or (container.enables_shared and name in _OPENSHIFTS):
            yield Problem(f"{shown(name)} is set by cpupool alone", "remove it", path=path)
        elif name == CPU_POOLS and container.readable and value != container.cpu_pools:
            meant = f"is {container.cpu_pools!r} here" if container.cpu_pools else "is not set here"
            yield Problem(f"{name} is set by cpupool alone, and {meant}", "remove it", path=path)


def _pools(container: ContainerRequests, rules: Rules) -> Iterator[Problem]:
    remedy = f"use {_either(rules.pools)}" if rules.pools else "add it to a pool file"
    for pool in (*container.requests, *sorted(container.unread - {ENABLE_SHARED_CPUS})):
        resource = rules.names.resource(pool)
        path = f"{container.path}.resources.limits[{shown(resource)}]"
        if rules.pools is not None:
            if pool not in rules.pools:
                yield Problem(
                    f"no pool file has an exclusive or shared pool {shown(pool)}",
                    remedy,
                    path=path,
                )
        elif not pools.is_name(pool):
            yield Problem("no pool can have this name", "use the name of a pool", path=path)


def _native_cpu(container: ContainerRequests, pod: PodRequests, rules: Rules) -> Iterator[Problem]:
    if not container.has_pools:
        return
    path = f"{container.path}.resources"
    for part, written, milli in replaced_cpu(container, rules):
        if written is not None:
            instead = "removed" if milli is None else f"replaced by {milli}m"
            yield Problem(
                f"the cpu of {shown(written.text)} is {instead}, as pools are requested, too",
                "remove it",
                Severity.WARNING,
                f"{path}.{part}.cpu",
            )
    limit = rules.limit_milli(container)
    if limit is not None:
        yield from _pod_level(container, limit, pod)
    elif rules.pools is None and rules.cfs_quotas is CFSQuotas.ALL:
        yield Problem(
            "it gets no cpu limit, because the webhook does not know the size of its shared pool",
            "give the webhook the pool files",
            Severity.WARNING,
            path,
        )


def _pod_level(container: ContainerRequests, milli: int, pod: PodRequests) -> Iterator[Problem]:
    # A container's limit may not exceed its pod's (KEP-2837).
    path = "spec.resources.limits.cpu"
    written = pod.resources.own.limits.get(CPU)
    if written is None:
        return
    try:
        allowed = written.value * MILLI_PER_CPU
    except QuantityError as error:
        yield Problem(str(error), "correct it", path=path)
        return
    if milli > allowed:
        yield Problem(
            f"the pod is limited to {shown(written.text)} cpu, and its container"
            f" {shown(container.name)} gets the limit {milli}m for its pools",
            f"raise it to {milli}m at least, or remove it",
            path=path,
        )


def _command(container: ContainerRequests) -> Iterator[Problem]:
    if not container.of_kind(ResourceKind.EXCLUSIVE):
        return
    path = f"{container.path}.command"
    if not container.command:
        yield Problem(
            "there is none, so nothing makes the process wait for its exclusive CPUs",
            "write the image's entry point here",
            Severity.WARNING,
            path,
        )
    elif own_command(container) is None:
        yield Problem(
            "this is the process starter with arguments that admission has not written",
            "write the application's own command",
            path=path,
        )


def _entry(
    entry: ContainerProcesses, container: ContainerRequests | None, rules: Rules
) -> Iterator[Problem]:
    if container is None:
        what = f"the pod has no container or init container {shown(entry.container)}"
        yield Problem(what, "correct the name", path=f"{entry.path}.container")
    elif not container.has_pools and not container.unread:
        what = f"container {shown(entry.container)} requests no exclusive or shared pool"
        yield Problem(what, "request the pools of its processes", path=entry.path)
    else:
        yield from _unrequested(entry, container)
        yield from _amounts(entry, container, rules)


def _unrequested(entry: ContainerProcesses, container: ContainerRequests) -> Iterator[Problem]:
    asked = {*container.requests, *container.unread}
    either = _either(asked)
    for place, process in enumerate(entry.processes):
        path = f"{entry.path}.processes[{place}].pool"
        if process.pool == ENABLE_SHARED_CPUS:
            what = f"{process.pool} has no milli-CPUs to share out between processes"
            remedy = f"use {either}: a process may move its threads to {OPENSHIFT_SHARED_CPUS}"
            yield Problem(what, remedy, path=path)
        elif process.pool not in asked:
            what = f"container {shown(entry.container)} does not request {shown(process.pool)}"
            yield Problem(what, f"request it, or use {either}", path=path)


def _amounts(
    entry: ContainerProcesses, container: ContainerRequests, rules: Rules
) -> Iterator[Problem]:
    used: Counter[str] = Counter()
    for process in entry.processes:
        used[process.pool] += process.cpus
    path = f"{entry.path}.processes"
    name = shown(entry.container)
    for pool, requested in container.of_kind(ResourceKind.SHARED).items():
        if used[pool] != requested:
            yield Problem(
                f"they have {used[pool]} milli-CPUs of {shown(pool)} together, and container {name}"
                f" requests {requested}",
                "make both the same",
                path=path,
            )
    for pool, requested in container.of_kind(ResourceKind.EXCLUSIVE).items():
        if used[pool] > requested * MOST_THREADS:
            yield Problem(
                f"they have {used[pool]} CPUs of {shown(pool)} together, and the {requested} cores"
                f" that container {name} requests have {requested * MOST_THREADS} at most",
                "request more, or pin fewer",
                path=path,
            )
        elif used[pool] > requested * rules.threads(pool):
            yield Problem(
                f"they have {used[pool]} CPUs of {shown(pool)} together, which is singleThreaded:"
                f" with the {requested} that container {name} requests the process starter fails",
                "request more, or pin fewer",
                Severity.WARNING,
                path,
            )


def _either(names: Iterable[str]) -> str:
    listed = [shown(name) for name in sorted(names)]
    if len(listed) > _SHOWN_POOLS:
        listed[_SHOWN_POOLS:] = [f"one of {len(listed) - _SHOWN_POOLS} others"]
    return " or ".join(listed)
