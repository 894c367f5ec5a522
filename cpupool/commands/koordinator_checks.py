"""What `cpupool doctor` says about Koordinator's agent beside cpupool's: a judgement of facts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cpupool.commands.checks import Row, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

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
        rival: whether cpupool does koordlet's work here, so that the absence of one counts, too.
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


def _on(words: Sequence[str]) -> Iterator[str]:
    """Yield the features of a koordlet that are on and write cpusets."""
    said = dict(_gates(words))
    for feature, by_default in _WRITERS.items():
        if said.get(feature, by_default):
            yield feature


def _gates(words: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield the feature gates of a command line; the last word about a feature counts."""
    for listed in re.findall(rf"(?:^|\0)--?{_GATES}[=\0]([^\0]*)", "\0".join(words)):
        for gate in listed.split(","):
            name, _, value = gate.partition("=")
            if (truth := _TRUTH.get(value.strip().lower())) is not None:
                yield name.strip(), truth
