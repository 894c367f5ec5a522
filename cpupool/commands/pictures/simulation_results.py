"""Shows the results of a simulation: drawn and listed for people, and as JSON."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TextIO

from cpupool.commands.shell import door
from cpupool.core.cpuset import CPUSet
from cpupool.core.quantity import as_quantity
from cpupool.manager import status_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cpupool.core.topology import CPUTopology
    from cpupool.simulate.cpu_manager import MoveRecord
    from cpupool.simulate.node import PlacementRecord, ResizeRecord
    from cpupool.simulate.simulation import SimulationResult, Summary

_SHOWN: Final = 5
_WAITING: Final = ("policy", "pods held", "for a mean of", "held at the end")
"""The titles about pods that wait for CPUs of a CPU manager policy."""
_RESIZES: Final = ("policy", "resizes served", "refused", "ignored")
_TITLES: Final = (
    "policy",
    "pods\nin",
    "refused",
    "on one\nnode",
    "behind\none L3",
    "in\nuse",
    "fragm.\nmean",
    "fragm.\nat end",
    "free\nblock",
)


def to_json(result: SimulationResult) -> dict[str, Any]:
    """Write the result under one policy as JSON values."""
    return {
        "summary": asdict(result.summary),
        "series": [asdict(moment) for moment in result.series],
        "refusals": [asdict(refusal) for refusal in result.refusals],
        "moves": [
            {
                "at_s": each.at_s,
                "container": f"{each.ref.pod}/{each.ref.name}",
                "before": str(each.before),
                "after": str(each.after),
                "why": each.why,
            }
            for each in result.moves
        ],
        "resizes": [{**asdict(each), "outcome": each.outcome.value} for each in result.resizes],
        "containers": [_container_as_json(placement) for placement in result.placements],
    }


def _container_as_json(placement: PlacementRecord) -> dict[str, Any]:
    return {
        "at_s": placement.at_s,
        "name": placement.container,
        "pool": placement.pool,
        "requested": placement.requested,
        "cpus": str(placement.cpus),
        "nodes": list(placement.nodes),
        "caches": list(placement.caches),
        "steps": status_json.steps_to_json(placement.steps),
        "refused": placement.refused,
        "waited_s": placement.waited_s,
        "held": placement.held,
        "shares": placement.shares,
    }


def show(
    topology: CPUTopology,
    results: Mapping[str, SimulationResult],
    out: TextIO,
    *,
    listed: bool,
    chooses: bool,
) -> None:
    """Draw the end under the first policy, list what is refused or waits, and compare.

    Args:
        topology: the machine.
        results: policy → the result for the same pods.
        out: where to write.
        listed: whether to list where each container is.
        chooses: whether a CPU manager policy gives out CPUs, for which pods may wait.
    """
    # Imported only here, so that --json needs no drawing library.
    from cpupool.commands.pictures import drawing, painting  # noqa: PLC0415

    name, first = next(iter(results.items()))
    painted = painting.paint(_by_pod(first.running))
    drawing.show(drawing.Picture(topology, painted), out)
    if listed:
        titles = ("container", "pool", "requests", "CPUs", "NUMA nodes", "L3")
        drawing.show(drawing.table(titles, map(_cells, first.running)), out)
        if first.without_cpus:
            more = len(first.without_cpus) - _SHOWN
            names = ", ".join(first.without_cpus[:_SHOWN]) + (f" and {more} more" * (more > 0))
            door.tell(f"Without a pool, and without CPUs of their own: {names}.", out)
    pods = first.summary.admitted + first.summary.refused
    came = f"{first.summary.admitted} of {pods} pods came in"
    door.tell(f"Above is the end under {name}: {came}.", out)
    _list([f"Refused at {refusal.at_s:g} s: {refusal.why}" for refusal in first.refusals], out)
    held = [
        f"Held since {each.at_s:g} s: {each.container}: {each.held}"
        for each in first.running
        if each.held
    ]
    _list(held, out)
    shares = [
        f"Shares since {each.at_s:g} s: {each.container}: {each.shares}"
        for each in first.running
        if each.shares
    ]
    _list(shares, out)
    for policy, result in results.items():
        under = f" under {policy}" if len(results) > 1 else ""
        refused = (each for each in result.resizes if each.why)
        _list([f"Resize refused{under} at {_resize(each)}" for each in refused], out)
        _list([f"Move{under} at {_move(each)}" for each in result.moves], out)
    compared = (_summary_cells(policy, result) for policy, result in results.items())
    drawing.show(drawing.table(_TITLES, compared), out)
    moves = any(result.moves for result in results.values())
    if chooses:
        waits = (
            _waiting_cells(policy, result.summary, moves=moves)
            for policy, result in results.items()
        )
        drawing.show(drawing.table((*_WAITING, *(["moves"] if moves else [])), waits), out)
    if any(result.resizes for result in results.values()):
        ends = (_resize_cells(policy, result.summary) for policy, result in results.items())
        drawing.show(drawing.table(_RESIZES, ends), out)


def _resize(resize: ResizeRecord) -> str:
    """Describe a refused resize: what the container requested, and what it owns."""
    had, wanted = as_quantity(resize.had_milli), as_quantity(resize.requested_milli)
    owns = f"; it owns {resize.owned} CPU{'s' * (resize.owned > 1)}" if resize.owned else ""
    what = f"request {had} becomes {wanted}{owns}"
    return f"{resize.at_s:g} s: {resize.container}: {what}: {resize.why}"


def _move(move: MoveRecord) -> str:
    """Describe a move: the container, its CPUs and the reason."""
    name = f"{move.ref.pod}/{move.ref.name}"
    return f"{move.at_s:g} s: {name} from CPUs {move.before} to {move.after}, {move.why}"


def _list(lines: Sequence[str], out: TextIO) -> None:
    """Print the first lines."""
    for line in lines[:_SHOWN]:
        door.tell(line, out)
    if (more := len(lines) - _SHOWN) > 0:
        door.tell(f"... and {more} more; --json has them all.", out)


def _by_pod(running: Sequence[PlacementRecord]) -> Iterable[tuple[str, CPUSet]]:
    """Return the CPUs that each pod has of each pool."""
    found: defaultdict[tuple[str, str], CPUSet] = defaultdict(CPUSet)
    for placement in running:
        pod, _, _ = placement.container.rpartition("/")
        found[pod, placement.pool] |= placement.cpus
    return ((pod, cpus) for (pod, _), cpus in found.items())


def _cells(placement: PlacementRecord) -> tuple[str, ...]:
    nodes, caches = (", ".join(map(str, ids)) for ids in (placement.nodes, placement.caches))
    return (
        placement.container,
        placement.pool,
        str(placement.requested),
        str(placement.cpus) or ("held" if placement.held else "shared"),
        nodes,
        caches,
    )


def _summary_cells(policy: str, result: SimulationResult) -> tuple[str, ...]:
    found = result.summary
    refused = found.refused / (found.admitted + found.refused)
    return (
        policy,
        str(found.admitted),
        f"{found.refused} ({refused:.0%})",
        _percent(found.on_one_node),
        _percent(found.behind_one_cache),
        _percent(found.utilisation),
        f"{found.fragmentation:.2f}",
        f"{found.fragmentation_at_end:.2f}",
        str(found.largest_block_at_end),
    )


def _waiting_cells(policy: str, found: Summary, *, moves: bool) -> tuple[str, ...]:
    held = f"{found.waited} ({found.waited / (found.admitted or 1):.0%})"
    mean = f"{found.waited_s:,.0f} s" if found.waited else "-"
    moved = [str(found.moves)] if moves else []
    return policy, held, mean, str(found.waiting_at_end), *moved


def _resize_cells(policy: str, found: Summary) -> tuple[str, ...]:
    ends = (found.resizes_served, found.resizes_refused, found.resizes_ignored)
    return policy, *map(str, ends)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
