"""`cpupool support-bundle`: what it takes to examine a node without being on it, in one file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.commands import UsageError, add_command, door, input_file, node
from cpupool.core.errors import HostFileError
from cpupool.host import recording

if TYPE_CHECKING:
    import argparse

    from cpupool.commands import Commands
    from cpupool.host.recording import Recording

_EXAMPLES = """\
examples:
  cpupool support-bundle
  kubectl logs -n NAMESPACE POD | cpupool support-bundle --log -
  kubectl exec -n NAMESPACE POD -- cpupool support-bundle --output - > node1.tar.gz

The bundle contains the machine's topology, the pool files, the cpusets of pods and services, the
names and CPUs of services and interrupts, the kubelet's settings for CPUs, the pods that have its
devices, and the agent's health, metrics and choices of CPUs (with names of pods and containers).
It contains no environments, arguments, tokens or devices of other plugins. bundle.json lists all
files, and what is missing.
Read it with `cpupool doctor --bundle FILE` and `cpupool topology --topology FILE`.

Exit code 0: it is written; 1: it could not be written; 2: the command line is wrong, or a file that
it names cannot be used.
"""
_STDOUT: Final = "-"
_LARGEST_LOG_BYTES: Final = 8 * 2**20


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "support-bundle",
        summary,
        "Collects the data for a diagnosis of this node in one file, without secrets.",
        _EXAMPLES,
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        default=f"cpupool-support-{os.uname().nodename}.tar.gz",
        help="the file to write, which must not be there yet; - for standard output"
        " (default: %(default)s)",
    )
    parser.add_argument(
        "--log", metavar="FILE", type=input_file, help="the agent's log; its end is put in"
    )
    node.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Collect and write.

    Raises:
        UsageError: the log cannot be read, or the output is there already or closed.
        HostFileError: the output cannot be written.
    """
    examined = node.this_node(arguments)
    log = _end_of(arguments.log) if arguments.log else None
    if arguments.output == _STDOUT:
        if sys.stdout is None:
            raise UsageError("standard output is closed; name a file with --output")
        if sys.stdout.isatty():
            raise UsageError(
                "a terminal cannot show an archive; name a file with --output, or a pipe"
            )
        _collect(examined, log).write(sys.stdout.buffer)
        return 0
    path = Path(arguments.output)
    try:
        # Only its owner can read it; no file is overwritten, and no link is followed.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            try:
                kept = _collect(examined, log)
                kept.write(file)
            except BaseException:
                path.unlink()
                raise
    except FileExistsError as error:
        raise UsageError(f"{path} is there already; name another file with --output") from error
    except OSError as error:
        raise HostFileError(
            str(path), f"cannot be written ({error.strerror})", "name another file with --output"
        ) from error
    _tell(path, kept, out)
    return 0


def _collect(examined: node.NodeSources, log: bytes | None) -> Recording:
    kept = recording.record(
        examined.root,
        examined.names,
        cgroup_root=examined.cgroup_root,
        config=examined.config,
        kubelet_config_file=examined.kubelet_config,
    )
    for what in (node.READY, node.METRICS):
        answer = examined.ask_agent(what)
        if answer is None:
            kept.left_out.append(f"the agent gives no answer at {examined.agent}/{what}")
        else:
            kept.files[str(recording.AGENT / what)] = answer.encode()
    if log is not None:
        kept.files[str(recording.AGENT / "log")] = log
    return kept


def _tell(path: Path, kept: Recording, out: TextIO) -> None:
    size = f"{len(kept.files)} files, {path.stat().st_size // 1024 + 1} KiB"
    door.tell(f"{path}: {size}", out)
    for reason in kept.left_out:
        door.tell(f"left out: {reason}", out)
    door.tell(f"examine it with: cpupool doctor --bundle {path}", out)


def _end_of(path: Path) -> bytes:
    try:
        end = b""
        with path.open("rb") as file:
            if file.seekable():
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LARGEST_LOG_BYTES))
            while read := file.read(_LARGEST_LOG_BYTES):
                end = (end + read)[-_LARGEST_LOG_BYTES:]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name the agent's log") from error
    return end
