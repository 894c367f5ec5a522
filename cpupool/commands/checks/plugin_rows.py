"""The rows in which `cpupool status` and `cpupool explain` show plugins and their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from cpupool.manager.report import NodeStatus, PluginAnswer


def plugin_rows(status: NodeStatus) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each plugin in the status."""
    for plugin in status.plugins:
        since = f"answered at {plugin.answered}" if plugin.answered else "not asked yet"
        yield plugin.resource or "not known yet", plugin.socket, plugin.why or since
    for resource in status.lost:
        yield resource, "", "gone: its last answers stay"


def answer_rows(status: NodeStatus) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each container's answers in the status."""
    for container in status.containers:
        for answer in container.answers:
            state = answer.why or confirmed(answer, status.lost)
            yield container.name, answer.resource, answered(answer), state


def node_rows(status: NodeStatus) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each resource that plugins offer for the node's status."""
    for each in status.node_resources:
        yield each.resource, str(each.amount), each.why or "in the node's status"


def answered(answer: PluginAnswer) -> str:
    """Describe the answer of a plugin."""
    values = [f"{name} {value or '(empty)'}" for name, value in sorted(answer.values.items())]
    text = ", ".join((*values, *answer.texts)) or "nothing to set"
    return f"{text}; asked for the NUMA nodes {answer.nodes}" if answer.nodes else text


def confirmed(answer: PluginAnswer, lost: Collection[str]) -> str:
    """Describe since when an answer is known."""
    since = f"confirmed at {answer.confirmed}" if answer.confirmed else "recorded earlier"
    return f"{since}; the plugin is gone" if answer.resource in lost else since
