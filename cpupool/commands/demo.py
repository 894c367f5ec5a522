"""`cpupool demo`: a whole node on this machine, the production roles running on it."""

from __future__ import annotations

import json
import logging
import signal
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from cpupool.app import Setup
from cpupool.commands import (
    UsageError,
    add_command,
    add_node_labels,
    add_resource_domain,
    add_shape,
    drawing,
    input_file,
    open_machine,
    pool_files,
    read_text,
    samples,
)
from cpupool.commands.live import LiveNode
from cpupool.config import poolconfig
from cpupool.config.poolconfig import Source
from cpupool.core.errors import ManifestError, PodRefused
from cpupool.core.names import Names
from cpupool.kube import views
from cpupool.local import cgroups
from cpupool.local.pods import HostedPod
from cpupool.telemetry import log

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator, Sequence

    from cpupool.commands import Commands
    from cpupool.commands.live import Disturbance, ProcessRow
    from cpupool.config.poolconfig import PoolFile
    from cpupool.core.topology import CPUTopology

_TITLES = ("process", "asks for", "environment", "belongs on", "runs on", "")
_EXAMPLES = """\
examples:
  cpupool demo
  cpupool demo --config poolconfig-dpdk.yaml --pods cpu-test.yaml
  cpupool demo --json | jq .verified

Exit code 0: every process was where it belongs, before and after; 1: one was not, a pod did not
start, or the node did not come up; 2: the command line is wrong, or a file that it names cannot be
used.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "demo",
        summary,
        "Runs a node on this machine: stand-ins for the kubelet and the runtime that speak the real"
        " protocols, and cpupool's own roles as they run in a cluster. Starts pods, compares where"
        " the kernel lets each process run with where it belongs, then moves one to wrong CPUs and"
        " shows its repair. Everything is removed at the end.",
        _EXAMPLES,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=input_file,
        help="a pool file or ConfigMap for this machine (default: pools made from its own CPUs)",
    )
    add_node_labels(parser)
    add_resource_domain(parser)
    parser.add_argument(
        "--pods",
        metavar="FILE",
        type=input_file,
        help="pod manifests to run (default: three small pods). Images are not pulled: an idle"
        " process takes each container's place",
    )
    add_shape(parser)
    parser.add_argument("--verbose", action="store_true", help="show the roles' log on stderr")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Run the demo; 0 only if every process was where it belongs, before and after.

    Raises:
        UsageError: a file cannot be used.
        CPUPoolError: a part of the node does not come up.
    """
    log.set_up(logging.INFO if arguments.verbose else logging.ERROR)
    machine = open_machine("this")
    names = Names(arguments.resource_domain)
    source, pool_file = _pool_file(arguments, names, machine)
    bodies = _bodies(arguments.pods, pool_file, names)
    refused: list[str] = []

    with _interrupts_noted() as check, ExitStack() as stack:

        def tell(line: str) -> None:
            check()
            if not arguments.json:
                print(line, file=out, flush=True)

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpupool-")))
        config = _mounted(folder / "etc", source)
        settings = Setup(config, names)
        place = stack.enter_context(cgroups.opened(folder, "demo", machine.online))
        tell(f"Containers run in {place.described}.")
        live = stack.enter_context(
            LiveNode(folder, place, settings, pool_file.node_selector, check=check)
        )
        for resource, devices in live.await_pools():
            tell(f"The kubelet knows {resource} with {devices} healthy devices.")
        for body in bodies:
            try:
                live.run_pod(body)
                tell(f"Pod {body['metadata']['name']} runs.")
            except PodRefused as error:
                refused.append(str(error))
                tell(f"Pod {error}")
        live.settled_rows()
        moved = live.disturb()
        rows = live.settled_rows()
        verified = bool(rows) and not refused and not live.astray
        picture = drawing.node_status(machine, live.status())
    if arguments.svg:
        drawing.export_svg(picture, arguments.svg, "cpupool demo")
    if arguments.json:
        document = {
            "cgroups": place.described,
            "processes": [{**asdict(row), "right": row.right} for row in rows],
            "refused": refused,
            "astray": sorted(live.astray),
            "disturbed": asdict(moved) if moved else None,
            "verified": verified,
        }
        out.write(json.dumps(document, indent=2) + "\n")
    else:
        drawing.show(picture, out)
        drawing.show(drawing.table(_TITLES, map(_cells, rows)), out)
        print(_verdict(rows, moved, refused, live.astray), file=out)
    return 0 if verified else 1


@contextmanager
def _interrupts_noted() -> Iterator[Callable[[], None]]:
    """Note Ctrl-C, SIGTERM and SIGHUP, and give what raises KeyboardInterrupt once there was one.

    Asked between two steps only, it finds each of them done or not begun, so that what is undone
    at the end is all there is; and another Ctrl-C does not disturb the undoing.
    """
    # No event: a second signal may interrupt the handler while it holds the event's lock.
    noted: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [
        signal.signal(number, lambda caught, _frame: noted.append(caught)) for number in signals
    ]

    def check() -> None:
        if noted:
            raise KeyboardInterrupt

    try:
        yield check
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _pool_file(
    arguments: argparse.Namespace, names: Names, machine: CPUTopology
) -> tuple[Source, PoolFile]:
    if arguments.config is not None:
        return pool_files.choose(arguments.config, arguments.node_labels, names, machine)
    source = Source.of("poolconfig-demo.yaml", samples.pool_file(machine))
    return source, poolconfig.parse(source.name, source.text, names)


def _mounted(folder: Path, source: Source) -> Path:
    """Lay the pool file where the agent finds it, as the ConfigMap's mount would."""
    folder.mkdir()
    text = source.text
    content = text.encode() if isinstance(text, str) else text
    (folder / "poolconfig-demo.yaml").write_bytes(content)
    return folder


def _bodies(path: Path | None, pool_file: PoolFile, names: Names) -> list[dict[str, Any]]:
    """Read the pods to run; what the node cannot take for pods is found here."""
    if path is None:
        return list(samples.pods(pool_file.pools, names))
    text = read_text(path)
    try:
        bodies = views.pods_from_text(str(path), text)
        pods = [HostedPod(views.created(body, "not-yet"), names).pod for body in bodies]
    except ManifestError as error:
        raise UsageError(f"--pods: {error}") from error
    if not pods:
        raise UsageError(f"{path}: there is no pod in it; name a file with one")
    called = [f"{pod.namespace}/{pod.name}" for pod in pods]
    if twice := [name for name in called if called.count(name) > 1]:
        raise UsageError(f"{path}: there are two pods {twice[0]} in it; rename one")
    return bodies


def _cells(row: ProcessRow) -> tuple[str, ...]:
    verdict = "right" if row.right else "WRONG"
    return row.name, row.requested, row.given, row.belongs, row.runs, verdict


def _verdict(
    rows: Sequence[ProcessRow],
    moved: Disturbance | None,
    refused: Sequence[str],
    astray: Collection[str],
) -> str:
    lines = []
    if not rows:
        lines.append("No process was started.")
    elif moved is None:
        lines.append("No container has less than the whole machine, so none could be moved away.")
    elif moved.after_ms is None:
        lines.append(
            f"{moved.name} was moved to CPUs {moved.moved_to}: no repair was seen, and it runs on"
            f" {moved.back_on}."
        )
    else:
        lines.append(
            f"{moved.name} was moved to CPUs {moved.moved_to}, and was back on {moved.back_on}"
            f" after {moved.after_ms:.0f} ms."
        )
    if refused:
        pods = "1 pod" if len(refused) == 1 else f"{len(refused)} pods"
        lines.append(f"{pods} did not start: see above.")
    if astray:
        lines.append(f"These ran on WRONG CPUs, or still do: {', '.join(sorted(astray))}.")
    elif rows:
        lines.append(f"All {len(rows)} processes run where they belong.")
    return "\n".join(lines)
