"""The subcommands: each module adds its arguments with `add_parser` and does its work in `run`.

What several of them ask for is here, so that it is called and checked alike.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cpupool.config.settings import OPTIONS, AgentSettings, SettingRefused
from cpupool.core.errors import CPUPoolError, HostFileError
from cpupool.host.sysfs import open_topology

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable

    from cpupool.core.topology import CPUTopology

    Commands = _SubParsersAction[argparse.ArgumentParser]

FAILED: Final = 1
BAD_INPUT: Final = 2
"""Exit code where there is no answer: the command line, or a file it names, cannot be used."""
POOL_FOLDER: Final = Path(AgentSettings().config)
"""Where the agent's ConfigMap is mounted; the manifests have it, too."""
NODE_NAME: Final = "NODE_NAME"
"""The variable with the node's name, in the agent's pod."""
METRICS_PORT: Final = AgentSettings().metrics_port
SIMULATION_SCHEMA: Final = "cpupool-simulation/1"
"""What `cpupool simulate --json` writes and `cpupool explain` reads."""
LOAD_REPLAY_SCHEMA: Final = "cpupool-load-replay/1"
"""What `cpupool simulate --load-trace --json` writes."""
_STDIN: Final = Path("/dev/stdin")
_LARGEST_BYTES: Final = 16 * 2**20
_WIDTH: Final = 100
_FLAGS: Final = "flags_given"
T = TypeVar("T")


class UsageError(CPUPoolError):
    """The command line, or a file that it names, cannot be used: exit code 2."""


def add_command(
    commands: Commands, name: str, summary: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    """Add a command; its epilog keeps its line ends."""
    return commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(description, _WIDTH),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_topology(parser: argparse.ArgumentParser, meaning: str, default: str | None) -> None:
    """Add `--topology`, for `open_machine`."""
    parser.add_argument(
        "--topology",
        metavar="MACHINE",
        default=default,
        help=f"{meaning}: this, a folder with a copy of /sys, or a recorded.tar.gz of one"
        f" (default: {default or 'none'})",
    )


def add_node_labels(parser: argparse.ArgumentParser) -> None:
    """Add `--node-labels`; None where there are none on the command line."""
    parser.add_argument(
        "--node-labels",
        metavar="K=V,...",
        type=node_labels,
        help="the node's labels; they choose its pool file",
    )


def add_setting(
    parser: argparse.ArgumentParser, name: str, read: Callable[[str], object] | None = None
) -> None:
    """Add one of the agent's settings to any command; `flags_given` knows whether it is given.

    Args:
        parser: the command's.
        name: the setting, as in OPTIONS.
        read: makes the argument of a text, instead of the setting's own parser.
    """
    option = OPTIONS[name]
    switch = isinstance(option.default, bool)
    parser.add_argument(
        *([f"--{name}", f"--no-{name}"] if switch else [f"--{name}"]),
        dest=option.field,
        action=_Flag,
        nargs=0 if switch else None,
        metavar=option.metavar,
        type=read or typed(option.parse),
        default=read(option.default) if read else option.default,
        choices=option.choices or None,
        help=option.help.replace("%", "%%"),
    )


def flags_given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the command line says of the agent's settings, by field; no defaults."""
    return dict(getattr(arguments, _FLAGS, {}))


class _Flag(argparse.Action):
    """Takes the value of a flag, or what the name of a switch says, and notes that it is given."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        flag: str | None = None,
    ) -> None:
        value = not str(flag).startswith("--no-") if self.nargs == 0 else values
        setattr(namespace, self.dest, value)
        setattr(namespace, _FLAGS, {**flags_given(namespace), self.dest: value})


def typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make the parser of a setting one of the command line's, for `type`."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except SettingRefused as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def add_resource_domain(parser: argparse.ArgumentParser) -> None:
    """Add `--resource-domain`."""
    add_setting(parser, "resource-domain")


def add_trees(parser: argparse.ArgumentParser) -> None:
    """Add `--cgroup-root` and `--host-root`: where the node's trees are."""
    add_setting(parser, "cgroup-root")
    add_setting(parser, "host-root", Path)


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--svg`, which exclude each other."""
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object instead")
    shape.add_argument("--svg", metavar="FILE", type=writable, help="write the picture as SVG, too")


def node_labels(text: str) -> dict[str, str]:
    """Read `key=value,...` from the command line.

    Raises:
        ArgumentTypeError: a piece is no pair.
    """
    labels: dict[str, str] = {}
    for piece in filter(None, text.split(",")):
        key, equals, value = piece.partition("=")
        if not equals or not key.strip():
            raise argparse.ArgumentTypeError(f"{piece!r} is no label; write key=value,key=value")
        labels[key.strip()] = value.strip()
    return labels


def writable(text: str) -> Path:
    """Read the name of a file to write from the command line.

    Raises:
        ArgumentTypeError: it cannot be written.
    """
    path = Path(text)
    try:
        usable = not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written; name a file in a folder where you may write"
        )
    return path


def open_machine(spec: str) -> CPUTopology:
    """Read the machine that `--topology` names.

    Raises:
        UsageError: there is none, or none that can be read.
    """
    try:
        return open_topology(spec)
    except HostFileError as error:
        raise UsageError(f"--topology: {error}") from error


def input_file(text: str) -> Path:
    """Read the name of a file to read from the command line; `-` is standard input.

    Raises:
        ArgumentTypeError: it names none, as an unset variable of a shell does.
    """
    if not text:
        raise argparse.ArgumentTypeError("no file is named; write one, or leave the option out")
    return _STDIN if text == "-" else Path(text)


def read_file(path: Path) -> bytes:
    """Read a file or a pipe that the command line names.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return file_content(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a file that can be read") from error


def file_content(path: Path) -> bytes:
    """Read a file or a pipe.

    Raises:
        OSError: it cannot be read, or is too long.
    """
    if path == _STDIN:
        content = _read_stdin()
    else:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_LARGEST_BYTES} bytes")
    return content


def read_text(path: Path) -> str:
    """Read a file or a pipe that the command line names as text.

    Raises:
        UsageError: it cannot be read, or is no text.
    """
    try:
        return read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: this is not UTF-8; save it as UTF-8") from error


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise UsageError("standard input is closed; name a file")
    return sys.stdin.buffer.read(_LARGEST_BYTES + 1)
