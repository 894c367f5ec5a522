"""Plots simulations over time: the only module that knows the plotting library."""

from __future__ import annotations

import io
from itertools import cycle
from math import nan
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matplotlib.axes import Axes

    from cpupool.simulate.node import Moment
    from cpupool.simulate.simulation import SimulationResult

_INCHES: Final = (10, 10)
_DOTS_PER_INCH: Final = 120
# Okabe and Ito's colours, which colour-blind people tell apart; the strokes differ without them.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_STROKES: Final = ("-", "--", "-.", ":", (0, (7, 2, 1, 2, 1, 2)))
_PANELS: Final[tuple[tuple[str, Callable[[Moment], float | None]], ...]] = (
    ("exclusive CPUs in use", lambda moment: moment.utilisation),
    ("fragmentation of the free ones", lambda moment: moment.fragmentation),
    ("containers on one NUMA node", lambda moment: moment.on_one_node),
    ("containers behind one L3", lambda moment: moment.behind_one_cache),
)


def plot(results: Mapping[str, SimulationResult], suffix: str) -> bytes:
    """Plot the use of the node under each policy.

    Args:
        results: policy → the result for the same events.
        suffix: `.png` or `.svg`.

    Returns:
        the file's content, the same for the same results.
    """
    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(_PANELS), sharex=True)
    last_s = max(result.series[-1].at_s for result in results.values())
    unit, unit_s = next(
        (unit, unit_s)
        for unit, unit_s in (("h", 3600), ("min", 60), ("s", 1))
        if last_s >= 2 * unit_s or unit_s == 1
    )
    for axes, (title, value) in zip(panels, _PANELS, strict=True):
        _draw(axes, title, results, value, unit_s)
    panels[-1].set_xlabel(f"time ({unit})")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    written = io.BytesIO()
    # Without the date and with ids that do not change from run to run; text stays text.
    with mpl.rc_context({"svg.hashsalt": "cpupool", "svg.fonttype": "none"}):
        metadata = {"Date": None} if suffix == ".svg" else {}
        figure.savefig(written, format=suffix[1:], dpi=_DOTS_PER_INCH, metadata=metadata)
    return written.getvalue()


def _draw(
    axes: Axes,
    title: str,
    results: Mapping[str, SimulationResult],
    value: Callable[[Moment], float | None],
    unit_s: int,
) -> None:
    for (name, result), colour, stroke in zip(
        results.items(), cycle(_COLOURS), cycle(_STROKES), strict=False
    ):
        times = [moment.at_s / unit_s for moment in result.series]
        found = [value(moment) for moment in result.series]
        values = [nan if value is None else value for value in found]
        axes.step(times, values, where="post", color=colour, linestyle=stroke, label=name)
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
