"""The roles of this room on a node, made from their files, sockets and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from cpupool.host.record_file import RecordFile
from cpupool.kubelet.podresources import PodResources
from cpupool.qrm import (
    answer_record,
    katalyst_checkpoint,
    node_resources_writer,
    podresources_service,
)
from cpupool.qrm.answer_import import AnswerImport
from cpupool.qrm.node_resources_writer import NodeResources
from cpupool.qrm.plugin_inquiry import PluginInquiry
from cpupool.qrm.resource_manager import ResourceManager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cpupool.core.plugin_facts import Record
    from cpupool.core.workloads import Node
    from cpupool.host.root import HostRoot
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.manager import Manager
    from cpupool.qrm.node_resources_writer import NodeResourceSink
    from cpupool.qrm.resource_manager import PluginSettings


def answers_file(
    path: Path, complain: Callable[[str, str], None] = lambda _reason, _what: None
) -> RecordFile[Record]:
    """Return the record of the answers of plugins, which outlives the agent.

    Args:
        path: the file; a node whose plugins have never answered has none.
        complain: the same argument of `RecordFile`.
    """
    return RecordFile(path, {}, answer_record.encode, answer_record.parse, complain=complain)


def make_resource_manager(
    manager: Manager,
    settings: PluginSettings,
    root: HostRoot,
    *,
    telemetry: Telemetry,
    changed: Callable[[], None],
) -> ResourceManager:
    """Return the role that asks plugins, with its record, and the answers of Katalyst's manager."""
    podresources = podresources_service.served(
        podresources_service.usual_path(root),
        PodResources(root.podresources_socket),
        PluginInquiry(lambda: role.plugins),
        manager.snapshot,
    )
    role = ResourceManager(
        manager,
        settings,
        answers_file(root.answers, telemetry.events.node),
        AnswerImport(katalyst_checkpoint.usual_paths(root), telemetry.events),
        telemetry=telemetry,
        changed=changed,
        v2=hierarchy(root.cgroup)[1] is CgroupVersion.V2,
        doors=(podresources,),
    )
    return role


def make_node_resources(
    plugins: ResourceManager,
    sink: NodeResourceSink | None,
    node: Callable[[], Node | None],
    *,
    manager: Manager,
    telemetry: Telemetry,
) -> Mapping[str, NodeResources]:
    """Return the role that writes what plugins offer into the node's status, by its name.

    There is none where plugins are not asked what the node has, or nothing takes it.
    """
    if sink is None or (offers := plugins.offers) is None:
        return {}
    role = NodeResources(
        sink,
        offers,
        node=node,
        names=manager.names,
        report=plugins.reports.in_node,
        health=telemetry.health,
    )
    return {node_resources_writer.NAME: role}
