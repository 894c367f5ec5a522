"""The checks of `cpupool doctor` for resource plugins: pure judgements of facts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cpupool.commands.checks.findings import Row, Verdict
from cpupool.config.kubelet_settings import NO_MEMORY_MANAGER
from cpupool.core.cgroups import Writer
from cpupool.core.pod_resources import CPU, MEMORY
from cpupool.core.properties import CPUSET_MEMS
from cpupool.qrm.registration import REGISTRATION_SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from cpupool.manager.report import NodeStatus

CHECK: Final = "resource plugins"
WRITERS: Final = "cpuset writers"
MEMORY_MANAGER: Final = "memory manager"
_ROOT: Final = 0
_OVERLAY: Final = "daemonsets/resource-plugins"
_KATALYST: Final = "katalyst-agent"
_ORM: Final = "katalyst-agent-orm"
"""Katalyst's manager beside the kubelet: one of the agents of `katalyst-agent`.

Source: kubewharf/katalyst-core, cmd/katalyst-agent/app/enableagents.go.
"""
PROGRAMS: Final = (
    _KATALYST,
    "nri-resource-policy-balloons",
    "nri-resource-policy-template",
    "nri-resource-policy-topology-aware",
)
"""Programs that may write the cpusets of containers; the last ones do so by NRI."""


def plugins(
    status: NodeStatus | None,
    sockets: Collection[tuple[str, int]],
    missing: Collection[str],
    *,
    decide: bool,
) -> Iterator[Row]:
    """Check that plugins register, and answer.

    There is no row where the agent asks no plugin, and the policy needs none.

    Args:
        status: the agent's status; None without.
        sockets: the sockets in the plugins' folders, each with its owner; the agent's own, too.
        missing: the folders that are not there, or cannot be seen.
        decide: whether plugins say which CPUs a container gets.
    """
    if status is None:
        return
    if not status.plugin_folders:
        if decide:
            fact = "the policy is qrm, and the agent asks no plugin: all containers share its CPUs"
            remedy = f"start the agent with --resource-plugins: apply {_OVERLAY}"
            yield Row(CHECK, Verdict.PROBLEM, fact, remedy)
        return
    of_plugins = [each for each in sockets if each[0].rpartition("/")[2] != REGISTRATION_SOCKET]
    rows = [*_in_folders(status, of_plugins, missing), *_answering(status), *_in_node(status)]
    if status.plugins and status.enforcement is not Writer.NRI:
        fact = (
            "without NRI a container starts before its answer applies, without the variables,"
            " annotations and OomScoreAdj of plugins; the rest follows with the next sweep"
        )
        rows.append(Row(CHECK, Verdict.WARNING, fact, "enable NRI in the container runtime"))
    served = {plugin.resource for plugin in status.plugins}
    if decide and CPU not in served:
        fact = "the policy is qrm, and no plugin serves cpu: containers get no CPUs from a plugin"
        remedy = f"start a plugin for cpu with its socket in {status.plugin_folders[0]}"
        rows.append(Row(CHECK, Verdict.PROBLEM, fact, remedy))
    listed = ", ".join(sorted(served - {""})) or "none"
    yield from rows or [Row(CHECK, Verdict.OK, f"the agent asks the plugins for {listed}")]


def _in_folders(
    status: NodeStatus, sockets: Collection[tuple[str, int]], missing: Collection[str]
) -> Iterator[Row]:
    if strange := sorted(path for path, owner in sockets if owner != _ROOT):
        fact = f"the agent asks no plugin at a socket of another user than root: {_listed(strange)}"
        yield Row(CHECK, Verdict.WARNING, fact, "run these plugins as root")
    known = {plugin.socket for plugin in status.plugins}
    if unseen := sorted(path for path, owner in sockets if owner == _ROOT and path not in known):
        fact = f"the agent does not see the sockets {_listed(unseen)}"
        remedy = f"mount their folder into the agent's pod, as {_OVERLAY} does"
        yield Row(CHECK, Verdict.PROBLEM, fact, remedy)
    if not (status.plugins or strange or unseen):
        fact = f"no plugin has a socket in {_listed(status.plugin_folders)}"
        if missing:
            fact += f"; there is no folder {_listed(missing)}"
        remedy = f"give the plugin one of these folders, and mount it as {_OVERLAY} does"
        yield Row(CHECK, Verdict.WARNING, fact, remedy)


def _answering(status: NodeStatus) -> Iterator[Row]:
    for plugin in status.plugins:
        if plugin.why:
            name = f"the plugin for {plugin.resource} " if plugin.resource else ""
            fact = f"{name}at {plugin.socket}: {plugin.why}" if name else plugin.why
            remedy = "look at its log; until it answers, containers keep its last good answers"
            yield Row(CHECK, Verdict.WARNING, fact, remedy)
    if status.lost:
        fact = f"the plugin for {_listed(status.lost)} is gone: its last answers stay"
        remedy = "start it again: new containers that must have an answer wait for it"
        yield Row(CHECK, Verdict.WARNING, fact, remedy)


def _in_node(status: NodeStatus) -> Iterator[Row]:
    for each in status.node_resources:
        if each.why:
            fact = f"pods cannot request {each.resource}, the node's status lacks it: {each.why}"
            yield Row(CHECK, Verdict.WARNING, fact, each.remedy)


def writers(found: Collection[Sequence[str]] | None, *, decide: bool) -> Iterator[Row]:
    """Check that no other program writes the cpusets of containers.

    Args:
        found: the command line of each of `PROGRAMS` on the node; None where none could be seen.
        decide: whether plugins say which CPUs a container gets, so that the absence of such
            programs is worth a row, too.
    """
    rivals = sorted({name for words in found or () if (name := _writer(words))})
    for name in rivals:
        if name == _ORM:
            fact = "Katalyst's manager asks the same plugins, and writes the same cpusets"
            remedy = f"add -{_ORM} to the --agents of {_KATALYST}; its plugins need only cpupool"
        else:
            fact = f"{name} sets the CPUs of containers by NRI, too: the runtime may refuse both"
            remedy = "remove its DaemonSet; a container has one program that sets its CPUs"
        yield Row(WRITERS, Verdict.PROBLEM, fact, remedy)
    if decide and found is None:
        remedy = "run this on the node, not in a container, or name the API server"
        yield Row(WRITERS, Verdict.UNSEEN, "the node's processes cannot be seen from here", remedy)
    elif decide and not rivals:
        yield Row(WRITERS, Verdict.OK, "no other program is known to write cpusets here")


def memory_manager(read: Callable[[], str | None], status: NodeStatus | None) -> Iterator[Row]:
    """Check that the kubelet chooses no NUMA nodes for memory where a plugin does.

    There is no row where no plugin does.

    Args:
        read: returns the policy of the kubelet's memory manager; None where it cannot be seen.
        status: the agent's status; None without.
    """
    if status is None or not (setters := sorted(_memory_setters(status))):
        return
    policy = read()
    if policy is None:
        fact = "the kubelet's policy cannot be seen from here"
        yield Row(MEMORY_MANAGER, Verdict.UNSEEN, fact, "run this on the node, as root")
    elif policy == NO_MEMORY_MANAGER:
        fact = f"none, so only the plugin for {_listed(setters)} chooses NUMA nodes for memory"
        yield Row(MEMORY_MANAGER, Verdict.OK, fact)
    else:
        fact = (
            f"the kubelet's memory manager is {policy!r:.40}: it chooses the NUMA nodes for the"
            f" memory of Guaranteed pods, and so does the plugin for {_listed(setters)}"
        )
        remedy = (
            "drain the node, stop the kubelet, set memoryManagerPolicy: None, delete"
            " memory_manager_state in its folder, start it"
        )
        yield Row(MEMORY_MANAGER, Verdict.PROBLEM, fact, remedy)


def _memory_setters(status: NodeStatus) -> set[str]:
    """Return the resources whose plugins set, or are there to set, memory nodes."""
    shown = {
        answer.resource
        for container in status.containers
        for answer in container.answers
        if CPUSET_MEMS in answer.values
    }
    return shown | {plugin.resource for plugin in status.plugins if plugin.resource == MEMORY}


def _writer(words: Sequence[str]) -> str:
    name = words[0].rpartition("/")[2]
    if name != _KATALYST:
        return name
    listed = re.findall(r"(?:^|\0)--?agents[=\0]([^\0]*)", "\0".join(words))
    agents = {agent.strip() for each in listed for agent in each.split(",")}
    on = _ORM in agents or ("*" in agents and f"-{_ORM}" not in agents)
    return _ORM if on else ""


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)
