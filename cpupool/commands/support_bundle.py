"""`cpupool support-bundle`: writes the facts that a person needs to examine a node elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.commands.shell import archive, door, node
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file
from cpupool.commands.shell.options import add_command
from cpupool.host import recording

if TYPE_CHECKING:
    import argparse

    from cpupool.commands.shell.options import Commands
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
    if arguments.output == archive.STDOUT:
        archive.write_stdout("--output", lambda: _collect(examined, log))
        return 0
    path = Path(arguments.output)
    # Only its owner can read it.
    kept = archive.write_file(path, "--output", 0o600, lambda: _collect(examined, log))
    archive.tell(path, kept, out)
    door.tell(f"examine it with: cpupool doctor --bundle {path}", out)
    return 0


def _collect(examined: node.NodeSources, log: bytes | None) -> Recording:
    kept = recording.record(
        examined.root,
        examined.names,
        cgroup_root=examined.root.cgroup_root,
        config=examined.config,
        kubelet_config_file=examined.kubelet_config,
        kubelet_config_dir=examined.kubelet_files.folder,
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
