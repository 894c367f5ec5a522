"""`cpupool simulate --load-trace`: pools that are sized by a recorded load, beside fixed ones."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.core.errors import CPUPoolError
from cpupool.plugins import load_simulation
from cpupool.plugins.config import Aims
from cpupool.plugins.load_sizing import PERIOD_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cpupool.plugins.load_simulation import Replay

SCHEMA: Final = "cpupool-load-replay/1"
"""The schema of the output of `cpupool simulate --load-trace --json`."""
SERVICE_S: Final = 0.010
_FLOOR: Final = 4
_LATE: Final = 0.01
_WIDTH: Final = 60
_BARS: Final = "▁▂▃▄▅▆▇█"


class TooFewCPUs(CPUPoolError):
    """A machine whose CPUs do not suffice for the floors of the pools."""

    def __init__(self, pools: int, total: int) -> None:
        super().__init__(
            f"{pools} pools have {_FLOOR} CPUs each at least, and there are {total}; leave pools"
            " out of the trace, or name a larger machine with --topology"
        )


def replay(load: Mapping[str, Sequence[float]], total: int, out: TextIO, *, as_json: bool) -> None:
    """Replay the load, and show the result.

    Args:
        load: pool → the CPUs that its requests use in each period.
        total: how many CPUs the pools and batch work have.
        out: where to write.
        as_json: whether to write one JSON object.

    Raises:
        TooFewCPUs: there are fewer CPUs than the pools have at least.
    """
    floors = dict.fromkeys(load, _FLOOR)
    if sum(floors.values()) > total:
        raise TooFewCPUs(len(floors), total)
    sized = load_simulation.by_load(load, floors, total, Aims())
    waits = {pool: sized.wait_s(pool, _LATE, SERVICE_S) for pool in load}
    fixed = {
        pool: load_simulation.fixed_as_good(load[pool], waits[pool], _LATE, SERVICE_S, total)
        for pool in load
    }
    if as_json:
        out.write(json.dumps(_to_json(sized, waits, fixed), indent=2) + "\n")
    else:
        _show(sized, waits, fixed, out)


def _batch_of_fixed(sized: Replay, fixed: Mapping[str, int | None]) -> float | None:
    """Return the CPU hours that fixed sizes would leave; None if they do not fit together."""
    sizes = [size for size in fixed.values() if size is not None]
    spare = sized.total - sum(sizes)
    return spare * sized.hours if len(sizes) == len(fixed) and spare >= 0 else None


def _to_json(
    sized: Replay, waits: Mapping[str, float], fixed: Mapping[str, int | None]
) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "simulated": {"model": "M/M/c", "service_s": SERVICE_S, "late_share": _LATE},
        "cpus": sized.total,
        "period_s": PERIOD_S,
        "pools": {
            pool: {
                "wait_s": waits[pool],
                "fixed_cpus": fixed[pool],
                "offered_cpus": [period.queues[pool].offered for period in sized.periods],
                "cpus": [period.queues[pool].cpus for period in sized.periods],
            }
            for pool in waits
        },
        "batch_cpu_hours": sized.batch_cpu_hours,
        "batch_cpu_hours_of_fixed_sizes": _batch_of_fixed(sized, fixed),
        "moved_cpus_per_hour": sized.moved_cpus_per_hour,
    }


def _show(
    sized: Replay, waits: Mapping[str, float], fixed: Mapping[str, int | None], out: TextIO
) -> None:
    out.write(f"{len(waits)} pools on {sized.total} CPUs, for {sized.hours:.1f} h\n\n")
    wide = max(map(len, waits))
    for pool, wait_s in waits.items():
        queues = [period.queues[pool] for period in sized.periods]
        rows = (
            ("load", [queue.offered for queue in queues], "CPUs"),
            ("size", [float(queue.cpus) for queue in queues], "CPUs"),
            ("waits", [100 * (queue.load.waiting or 0.0) for queue in queues], "% of the time"),
        )
        for number, (title, values, unit) in enumerate(rows):
            name = pool if number == 0 else ""
            low, high = round(min(values), 1), round(max(values), 1)
            out.write(f"{name:{wide}}  {title:5} {_line(values)}  {low:g} to {high:g} {unit}\n")
        needs = "more CPUs than there are" if fixed[pool] is None else f"{fixed[pool]} CPUs"
        out.write(
            f"{'':{wide}}  99 % of the requests wait at most {_time(wait_s)} for a CPU; a pool of a"
            f" fixed size needs {needs} for that\n\n"
        )
    gained = _batch_of_fixed(sized, fixed)
    fixed_too = "" if gained is None else f", and {gained:.1f} with pools of these fixed sizes"
    out.write(
        f"Batch work has {sized.batch_cpu_hours:.1f} CPU hours in {sized.hours:.1f} h{fixed_too}."
        f" {sized.moved_cpus_per_hour:.0f} CPUs move in an hour.\n"
        f"Simulated, not measured: M/M/c queues, {1e3 * SERVICE_S:g} ms of CPU for a request.\n"
    )


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _line(values: Sequence[float]) -> str:
    """Draw values as bars from 0 to the greatest; each bar is the greatest of its share."""
    count = min(_WIDTH, len(values))
    edges = [len(values) * number // count for number in range(count + 1)]
    tops = [max(values[low:high]) for low, high in pairwise(edges)]
    greatest = max(tops) or 1.0
    return "".join(_BARS[round(top / greatest * (len(_BARS) - 1))] for top in tops)
