"""Admission: the webhook checks pods that request pools, and completes them before they run.

Admission adds to a pod: the variable `CPU_POOLS`, a cpu limit by CPU-Pooler's arithmetic with the
request `0m`, the process starter before the command and `CONTAINER_NAME` with it, and CRI-O's
annotation for a container with OpenShift's resource for shared CPUs, whose native CPUs stay. With
an annotation, which the rules switch on, the runtime creates no container while the agent is away.
Admission never changes a body in place: unchanged parts are the same objects before and after.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from cpupool.core import visible
from cpupool.core.cpu_manager import Eligible
from cpupool.core.errors import Problem, QuantityError, Severity, errors_in
from cpupool.core.names import (
    CONTAINER_NAME,
    CPU_POOLS,
    NODE_CRITICAL,
    NRI_PLUGIN,
    REQUIRED_PLUGINS,
    STARTER,
    STATIC_POD_MIRROR,
)
from cpupool.core.pod_resources import CPU
from cpupool.core.requests import ResourceKind
from cpupool.core.workloads import QoSClass
from cpupool.webhook.admission import checks, koordinator, mixed_cpus, starter_argv
from cpupool.webhook.admission.pod_requests import REQUESTING, PodRequests, check_crowd, mapping
from cpupool.webhook.admission.rules import RequiredAgent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.webhook.admission.annotation import ContainerProcesses
    from cpupool.webhook.admission.pod_requests import Body, ContainerRequests
    from cpupool.webhook.admission.rules import Rules

_SHOWN_PROBLEMS: Final = 20
_SHOWN_WARNINGS: Final = 16
_WARNING_LENGTH: Final = 256
"""The API server passes on 4,096 characters of warnings, and cuts each warning at 256."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A pod that is admitted.

    Attributes:
        body: the pod that the API server must store.
        warnings: warnings for its author, each within the API's 256 characters.
    """

    body: Body
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Denied:
    """A pod that is not admitted.

    Attributes:
        problems: everything that is wrong with it.
        warnings: warnings for its author; an admitted pod has them, too.
    """

    problems: tuple[Problem, ...]
    warnings: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """All problems for its author, one problem per line."""
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = [f"{len(self.problems)} problems:"]
        lines += [
            f"{n}. {problem}" for n, problem in enumerate(self.problems[:_SHOWN_PROBLEMS], start=1)
        ]
        if len(self.problems) > _SHOWN_PROBLEMS:
            lines.append(f"and {len(self.problems) - _SHOWN_PROBLEMS} more")
        return "\n".join(lines)


def admit(
    body: object, rules: Rules, namespace: str = "default", account: str = ""
) -> Admitted | Denied:
    """Check a new pod, and complete it; a pod that requests nothing is not changed.

    Admitting the result again changes nothing.

    Args:
        body: the pod.
        rules: the rules of admission.
        namespace: the namespace of the request, whatever the body says.
        account: the user name of the caller; empty where it is not known.

    Raises:
        ManifestError: the API server would not accept the pod.
    """
    if crowd := check_crowd(body, rules.names):
        return Denied((crowd,))
    pod = _read(body, rules)
    problems = _problems(pod, rules)
    if pod.asks:
        problems += checks.check_commands(pod)
        if any(container.enables_shared for container in pod.containers):
            problems += mixed_cpus.check_namespace(namespace, rules.namespaces)
    problems += koordinator.check_metadata(pod.body, None, rules, account)
    refused = errors_in(problems)
    found = [problem for problem in problems if problem.severity is Severity.WARNING]
    warnings = tuple(map(_cut, found[:_SHOWN_WARNINGS]))
    if refused:
        return Denied(tuple(refused), warnings)
    return Admitted(_completed(pod, rules), warnings)


def admit_update(
    body: object, before: object, rules: Rules, account: str = ""
) -> Admitted | Denied:
    """Check an update, which cannot change what a pod requests.

    Only a new problem refuses the update: a pod from before the webhook must be able to lose a
    finalizer.

    Raises:
        ManifestError: the API server would not accept one of the two pods.
    """
    new, old = (_read(document, rules) for document in (body, before))
    known = set(_problems(old, rules))
    refused = [problem for problem in errors_in(_problems(new, rules)) if problem not in known]
    refused += koordinator.check_metadata(new.body, old.body, rules, account)
    key = rules.names.processes
    edited = new.annotations.get(key) != old.annotations.get(key)
    warning = f"metadata.annotations[{key}]: read when a pod is created; create the pod again"
    warnings = (warning,) if edited else ()
    return Denied(tuple(refused), warnings) if refused else Admitted(new.body, warnings)


def admit_metadata(body: object, before: object, rules: Rules, account: str) -> Admitted | Denied:
    """Check a write that can change nothing of a pod but its metadata and its status.

    Args:
        body: the pod, or a Binding, whose metadata the API server merges into the pod.
        before: the pod before; empty for a Binding.
        rules: the rules of admission.
        account: the user name of the caller.

    Raises:
        ManifestError: the API server would not accept one of the two bodies.
    """
    new, old = mapping(body, ""), mapping(before, "")
    refused = tuple(koordinator.check_metadata(new, old, rules, account))
    return Denied(refused) if refused else Admitted(new)


def _read(body: object, rules: Rules) -> PodRequests:
    return PodRequests.read(body, rules.names, mixed=bool(rules.mixed))


def _problems(pod: PodRequests, rules: Rules) -> list[Problem]:
    found = [*pod.problems, *checks.check(pod, rules)] if pod.asks else []
    found += checks.check_names(pod, rules.names)
    return [*found, *koordinator.check(pod, rules), *_of_policies(pod, rules)]


def _of_policies(pod: PodRequests, rules: Rules) -> Iterator[Problem]:
    """Find what is wrong in words for a CPU manager policy.

    Mirrors of static pods have no effect: the kubelet runs the pod from its file.
    """
    if STATIC_POD_MIRROR in pod.annotations:
        return
    requested = {container.path: container.resources for container in pod.containers}
    found = (
        policy.pod_problems(pod.annotations, requested, rules.names, rules.max_notice_s)
        for policy in rules.policies
    )
    # A policy of a package may have those of the policy that it derives from.
    yield from dict.fromkeys(chain.from_iterable(found))


def _cut(warning: Problem) -> str:
    text = visible.line(f"{warning.path}: {warning.what}; {warning.remedy}")
    return text if len(text) <= _WARNING_LENGTH else f"{text[: _WARNING_LENGTH - 3]}..."


def _completed(pod: PodRequests, rules: Rules) -> Body:
    metadata = _metadata(pod, rules)
    if not pod.asks:
        return {**pod.body, **metadata} if metadata else pod.body
    done = iter(
        [
            _complete(container, pod.entries.get(container.name), rules)
            for container in pod.containers
        ]
    )
    spec = dict(pod.body["spec"])
    for part in REQUESTING:
        if spec.get(part):
            spec[part] = [next(done) for _ in spec[part]]
    return {**pod.body, **metadata, "spec": spec}


def _metadata(pod: PodRequests, rules: Rules) -> Body:
    added = {**mixed_cpus.marks(pod), **_required_agent(pod, rules)}
    if added.items() <= pod.annotations.items():
        return {}
    metadata = mapping(pod.body.get("metadata"), "metadata")
    annotations = {**mapping(metadata.get("annotations"), "metadata.annotations"), **added}
    return {"metadata": {**metadata, "annotations": annotations}}


def _required_agent(pod: PodRequests, rules: Rules) -> dict[str, str]:
    """Return the annotation with which the runtime creates no container while the agent is away.

    A pod whose author names required plugins keeps the author's list. A pod that the node needs
    starts without the agent, whose own pod may wait for it: for the network plugin, for example.
    """
    if rules.required_agent is RequiredAgent.NONE or _of_the_node(pod):
        return {}
    if any(key.partition("/")[0] == REQUIRED_PLUGINS for key in pod.annotations):
        return {}
    exclusive = any(container.of_kind(ResourceKind.EXCLUSIVE) for container in pod.containers)
    guaranteed = rules.required_agent is RequiredAgent.GUARANTEED and _owns_whole_cpus(pod, rules)
    return {REQUIRED_PLUGINS: json.dumps([NRI_PLUGIN])} if exclusive or guaranteed else {}


def _of_the_node(pod: PodRequests) -> bool:
    spec = mapping(pod.body.get("spec"), "spec")
    return STATIC_POD_MIRROR in pod.annotations or spec.get("priorityClassName") == NODE_CRITICAL


def _owns_whole_cpus(pod: PodRequests, rules: Rules) -> bool:
    """Return whether a CPU manager policy may give the pod CPUs of its own."""
    if koordinator.owns(pod, rules):
        return True
    resources = pod.resources
    try:
        if resources.own.requests or resources.own.limits:
            return rules.pod_level and resources.qos is QoSClass.GUARANTEED
        if rules.eligible is Eligible.CONTAINER:
            return any(written.equal_cpus for _, written in resources.containers)
        whole = any(written.whole_cpus for _, written in resources.containers)
        guaranteed = resources.qos is QoSClass.GUARANTEED
    except QuantityError:
        # The API server refuses the pod.
        return False
    return whole and guaranteed


def _complete(container: ContainerRequests, entry: ContainerProcesses | None, rules: Rules) -> Body:
    if not container.cpu_pools:
        return container.body
    body = dict(container.body)
    if container.has_pools:
        body["resources"] = _resources(container, rules)
    _set_variable(body, container, CPU_POOLS, container.cpu_pools)
    if entry:
        args = starter_argv.for_processes(rules.awaited(container), entry)
    elif container.command and container.of_kind(ResourceKind.EXCLUSIVE):
        words = checks.own_command(container) or ()
        args = starter_argv.for_command(rules.awaited(container), words)
    else:
        return body
    _set_variable(body, container, CONTAINER_NAME, container.name)
    return {**body, "command": [STARTER], "args": args}


def _set_variable(
    body: dict[str, Any], container: ContainerRequests, name: str, value: str
) -> None:
    """Add a variable to the env of a container's copy, unless its author has set it."""
    if name not in dict(container.env):
        body["env"] = [*(body.get("env") or ()), {"name": name, "value": value}]


def _resources(container: ContainerRequests, rules: Rules) -> dict[str, Any]:
    resources = dict(container.body["resources"])
    for part, _, milli in checks.replaced_cpu(container, rules):
        amounts = dict(resources.get(part) or {})
        if milli is None:
            del amounts[CPU]
        else:
            amounts[CPU] = f"{milli}m"
        resources[part] = amounts
    return resources
