"""The checks of `cpupool doctor` for a node's NodeResourceTopology: pure judgements of facts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cpupool.commands.checks.findings import Row, Verdict, refused
from cpupool.kube.node_topology import CREATE_CRD, GRANT
from cpupool.wire.node_topology import KIND, LISTS, MANAGER, PLURAL, VERSIONS, Field

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.wire.node_topology import Observed

CHECK: Final = "node topology"
WRITES: Final = "cpupool_node_topology_writes_total{"
"""A sample of the agent, in its metrics: only an agent that publishes has one."""
_LABEL: Final = Field(("metadata", "labels", "app.kubernetes.io/managed-by"))


@dataclass(frozen=True, slots=True)
class InCluster:
    """The answer of an API server about a node's object.

    Attributes:
        node: the node's name, and the object's.
        version: the version in which the agent reads and writes it; empty without the CRD.
        object: the object; None where there is none.
    """

    node: str
    version: str
    object: Observed | None


def node_topology(metrics: str | None, asked: InCluster | None) -> Iterator[Row]:
    """Check that the agent can publish the node's topology, and find its other writers.

    There is no row where the agent does not publish and the node has no object.

    Args:
        metrics: the agent's answer to /metrics; None without one.
        asked: the API server's answer; None where no API server is named.
    """
    publishes = WRITES in (metrics or "")
    if publishes and PLURAL in refused(metrics):
        yield Row(CHECK, Verdict.WARNING, "the API server has refused the agent", GRANT)
    if asked is None:
        if publishes:
            fact = "the agent publishes it; other programs that write it are not known here"
            remedy = "name the API server with --kubeconfig, and the node with --node-name"
            yield Row(CHECK, Verdict.UNSEEN, fact, remedy)
    elif asked.object is not None:
        silent = metrics is not None and not publishes
        yield _writers(asked, asked.object, publishes=publishes, silent=silent)
    elif publishes:
        served = f"the API server serves no {KIND} of {' or '.join(VERSIONS)}"
        fact, remedy = ("the node has no object yet", "look at the agent's log for the reason")
        if not asked.version:
            fact, remedy = served, CREATE_CRD
        yield Row(CHECK, Verdict.WARNING, fact, remedy)


def _writers(asked: InCluster, found: Observed, *, publishes: bool, silent: bool) -> Row:
    """Return a row about the writers of an object.

    Args:
        asked: the API server's answer.
        found: the object.
        publishes: whether the agent says that it publishes.
        silent: whether it says that it does not.
    """
    fields: defaultdict[str, list[str]] = defaultdict(list)
    for field in found.ours:
        fields[MANAGER].append(field.name)
    for field, manager in found.others.items():
        fields[manager].append(field.name)
    said = [f"{manager} writes {', '.join(sorted(names))}" for manager, names in fields.items()]
    if label := _LABEL.of(found.body):
        said.append(f"the label {_LABEL.name} says {label}")
    fact = f"{asked.version}: {'; '.join(said) or 'no manager is named'}"
    delete = f"kubectl delete {PLURAL} {asked.node}"
    if publishes and any(name in LISTS for field in found.others for name in field.path[:1]):
        remedy = (
            f"cpupool leaves the fields of others; to let it write them, stop them, then {delete}"
        )
        return Row(CHECK, Verdict.WARNING, fact, remedy)
    if silent and found.ours:
        remedy = f"the agent no longer publishes, and the object stays: {delete}"
        return Row(CHECK, Verdict.WARNING, fact, remedy)
    return Row(CHECK, Verdict.OK, fact)
