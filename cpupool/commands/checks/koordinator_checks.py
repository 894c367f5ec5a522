"""The checks of `cpupool doctor` for Koordinator's agent and scheduler: judgements of facts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cpupool.commands.checks import topology_checks
from cpupool.commands.checks.findings import Row, Verdict
from cpupool.policies.koordinator.topology_annotations import CPU_TOPOLOGY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from cpupool.commands.checks.topology_checks import InCluster

CHECK: Final = "koordlet"
PROGRAM: Final = "koordlet"
_WRITERS: Final = {"CPUSetAllocator": True, "BECPUSuppress": True, "BECPUManager": False}
"""The features of koordlet that write cpusets, and whether each is on by default.

Source: pkg/features/koordlet_features.go and pkg/koordlet/runtimehooks/config.go, Koordinator 1.8.
"""
_GATES: Final = "feature-gates"
_TRUTH: Final = {"true": True, "false": False}
_ON_NODE: Final = "run this on the node, not in a container, or name the API server"


def koordlet(found: Collection[Sequence[str]] | None, *, rival: bool) -> Iterator[Row]:
    """Check that no koordlet writes the cpusets that cpupool writes.

    Args:
        found: the command line of each koordlet of the node; None where none could be seen.
        rival: whether cpupool does koordlet's work here, so that its absence is worth a row, too.
    """
    if not found:
        if rival and found is None:
            fact = "the processes of the node cannot be seen from here"
            yield Row(CHECK, Verdict.UNSEEN, fact, _ON_NODE)
        elif rival:
            yield Row(CHECK, Verdict.OK, "no koordlet runs here")
        return
    on = sorted({feature for words in found for feature in _on(words)})
    if not on:
        yield Row(CHECK, Verdict.OK, "it runs here without the features that write cpusets")
        return
    fact = f"it runs here, and writes the same cpusets as cpupool: {', '.join(on)}"
    gates = ",".join(f"{feature}=false" for feature in on)
    remedy = f"add {gates} to its --{_GATES}: docs/user/koordinator.md, From koordlet"
    yield Row(CHECK, Verdict.WARNING, fact, remedy)


def untold(metrics: str | None, asked: InCluster | None, *, assigned: bool) -> Iterator[Row]:
    """Check that a scheduler which assigns CPUs knows the node's CPUs.

    Args:
        metrics: the agent's answer to /metrics; None without one.
        asked: the API server's answer; None where no API server is named.
        assigned: whether a scheduler has assigned CPUs to a pod of the node.
    """
    if not assigned or metrics is None:
        return
    tells = topology_checks.WRITES in metrics
    if tells and asked and asked.object:
        tells = any(field.name == CPU_TOPOLOGY for field in asked.object.ours)
    if not tells:
        fact = (
            "a scheduler assigns CPUs to pods here, and the agent does not publish which CPUs the"
            " node has, and which belong to pools"
        )
        remedy = "start the agents with --node-topology=koordinator"
        yield Row(topology_checks.CHECK, Verdict.WARNING, fact, remedy)


def _on(words: Sequence[str]) -> Iterator[str]:
    """Yield the features of a koordlet that are on and write cpusets."""
    said = dict(_gates(words))
    for feature, by_default in _WRITERS.items():
        if said.get(feature, by_default):
            yield feature


def _gates(words: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield the feature gates of a command line; the last word about a feature prevails."""
    for listed in re.findall(rf"(?:^|\0)--?{_GATES}[=\0]([^\0]*)", "\0".join(words)):
        for gate in listed.split(","):
            name, _, value = gate.partition("=")
            if (truth := _TRUTH.get(value.strip().lower())) is not None:
                yield name.strip(), truth
