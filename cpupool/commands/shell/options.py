"""The options that several commands have, so that each is named and checked alike."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cpupool.commands.shell.files import writable
from cpupool.config.settings import OPTIONS, AgentSettings, SettingRefused

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable

    Commands = _SubParsersAction[argparse.ArgumentParser]

POOL_FOLDER: Final = Path(AgentSettings().config)
"""The folder where the agent's ConfigMap is mounted; the manifests have it, too."""
NODE_NAME: Final = "NODE_NAME"
"""The variable with the node's name, in the agent's pod."""
METRICS_PORT: Final = AgentSettings().metrics_port
_WIDTH: Final = 100
_FLAGS: Final = "flags_given"
T = TypeVar("T")


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
    """Return the agent's settings on the command line, by field, without defaults."""
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
