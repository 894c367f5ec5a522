"""`cpupool demo`: a whole node on this machine, the production roles running on it."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from cpupool.app import Settings
from cpupool.commands import drawing, node_labels, open_machine, pool_files, samples
from cpupool.commands.live import LiveNode
from cpupool.core import pools
from cpupool.core.errors import PodRefused, refuse_errors
from cpupool.core.names import Names
from cpupool.kube import views
from cpupool.local import cgroups
from cpupool.telemetry import log

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from cpupool.commands.live import Disturbance, ProcessRow
    from cpupool.core.topology import CPUTopology

_EXAMPLES = """\
examples:
  cpupool demo
  cpupool demo --config poolconfig-dpdk.yaml --pods cpu-test.yaml
  cpupool demo --json | jq .verified
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser(
        "demo",
        help=summary,
        description="Runs a node on this machine: stand-ins for the kubelet and the runtime that"
        " speak the real protocols, and cpupool's own roles as they run in a cluster. Starts pods,"
        " compares where the kernel lets each process run with where it belongs, then moves one to"
        " wrong CPUs and shows its repair. Exit code 0 only if everything was right. Everything is"
        " removed at the end.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="a pool file or ConfigMap for this machine (default: pools made from its own CPUs)",
    )
    parser.add_argument(
        "--node-labels",
        metavar="K=V,...",
        type=node_labels,
        help="this node's labels, which choose the pool file in a ConfigMap",
    )
    parser.add_argument(
        "--pods",
        metavar="FILE",
        type=Path,
        help="pod manifests to run (default: three small pods). Images are not pulled: an idle"
        " process takes each container's place",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write the picture as SVG, too")
    parser.add_argument("--verbose", action="store_true", help="show the roles' log on stderr")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Run the demo; 0 only if every process was where it belongs, before and after.

    Raises:
        UsageError: a file cannot be read.
        CPUPoolError: the pools do not fit this machine, or a part of the node does not come up.
    """
    log.set_up(logging.INFO if arguments.verbose else logging.ERROR)
    machine = open_machine("this")
    refused: list[str] = []

    def tell(line: str) -> None:
        if not arguments.json:
            print(line, file=out, flush=True)

    with _cleaning_up() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpupool-")))
        settings = _settings(folder, machine, arguments)
        place = stack.enter_context(cgroups.opened(folder, "demo", machine.online))
        tell(f"Containers run in {place.described}.")
        live = stack.enter_context(LiveNode(folder, place, settings))
        for resource, devices in live.await_pools():
            tell(f"The kubelet knows {resource} with {devices} healthy devices.")
        for body in _bodies(arguments.pods, live):
            try:
                live.run_pod(body)
                tell(f"Pod {body['metadata']['name']} runs.")
            except PodRefused as error:
                refused.append(str(error))
                tell(f"Pod {error}")
        rows = live.settled_rows()
        moved = live.disturb()
        rows = live.settled_rows() if moved else rows
        verified = bool(rows) and not refused and all(row.right for row in rows)
        picture = drawing.node_status(machine, live.status())
    if arguments.svg:
        drawing.export_svg(picture, arguments.svg, "cpupool demo")
    if arguments.json:
        document = {
            "cgroups": place.described,
            "processes": [{**asdict(row), "right": row.right} for row in rows],
            "refused": refused,
            "disturbed": asdict(moved) if moved else None,
            "verified": verified,
        }
        out.write(json.dumps(document, indent=2) + "\n")
    else:
        drawing.show(picture, out)
        drawing.show(_table(rows), out)
        tell(_verdict(rows, moved, refused))
    return 0 if verified else 1


@contextmanager
def _cleaning_up() -> Iterator[ExitStack]:
    """Undo everything at the end, undisturbed by a second Ctrl-C; SIGTERM counts as the first."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interrupt) for number in signals]

    def ignore() -> None:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)

    try:
        with ExitStack() as stack:
            try:
                yield stack
            finally:
                ignore()
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _settings(folder: Path, machine: CPUTopology, arguments: argparse.Namespace) -> Settings:
    """Lay the pool file where the agent finds it, as the ConfigMap's mount would."""
    config = folder / "etc"
    config.mkdir()
    file = config / "poolconfig-demo.yaml"
    if arguments.config is None:
        file.write_text(samples.pool_file(machine), "utf-8")
        return Settings(config=config)
    source, chosen = pool_files.choose(arguments.config, arguments.node_labels, Names())
    # Said here, a problem names the user's file and not its copy.
    refuse_errors(chosen.located(pools.validate(chosen.pools, machine)))
    text = source.text
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return Settings(config=config, node_labels=chosen.node_selector)


def _bodies(path: Path | None, live: LiveNode) -> list[dict[str, Any]]:
    if path is None:
        manager = live.agent.manager
        return list(samples.pods(manager.pools(), manager.names))
    return views.pods_from_text(str(path), pool_files.read(path).decode("utf-8", "replace"))


def _table(rows: Sequence[ProcessRow]) -> RenderableType:
    return drawing.table(
        ("process", "asks for", "environment", "belongs on", "runs on", ""),
        [
            (
                row.name,
                row.requested,
                row.given,
                row.belongs,
                row.runs,
                "right" if row.right else "WRONG",
            )
            for row in rows
        ],
    )


def _verdict(rows: Sequence[ProcessRow], moved: Disturbance | None, refused: Sequence[str]) -> str:
    wrong = [row.name for row in rows if not row.right]
    lines = []
    if moved:
        lines.append(
            f"{moved.name} was moved to CPUs {moved.moved_to}, and was back on {moved.back_on}"
            f" after {moved.after_ms:.0f} ms."
        )
    else:
        lines.append("No container has less than the whole machine, so none could be moved away.")
    if refused:
        lines.append(f"{len(refused)} pods did not start: see above.")
    if wrong:
        lines.append(
            f"{len(wrong)} of {len(rows)} processes run on WRONG CPUs: {', '.join(wrong)}."
        )
    else:
        lines.append(f"All {len(rows)} processes run where they belong.")
    return "\n".join(lines)
