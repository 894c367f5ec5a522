"""`cpupool status`: shows which container runs where, as the agent last saw it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.commands.checks.node_checks import SILENT_S
from cpupool.commands.shell import door, status_file
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file, open_machine
from cpupool.commands.shell.options import add_command, add_setting, add_shape, add_topology
from cpupool.host.root import HostRoot

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cpupool.commands.shell.options import Commands
    from cpupool.manager.report import NodeStatus

_EXAMPLES = """\
examples:
  cpupool status
  cpupool status --json | jq '.containers[] | select(.placement == "confined")'
  cpupool status --kubeconfig ~/.kube/config --node worker-1

With --kubeconfig or --context the command runs in the agent's pod on that node, as with `kubectl
exec`: its user lists pods, and needs the verbs get and create on pods/exec.

Exit code 0: every container is where it belongs; 1: one is not, or the agent is silent, or the API
server does not answer or refuses; 2: the command line is wrong, the agent's file cannot be read, or
no agent runs on that node.
"""

_THIS: Final = "this"


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "status",
        summary,
        "Draws the machine with the containers on it and says which of them are where they belong."
        " While a resize takes CPUs from a container, a line says which and when, and the picture"
        " marks these with -.",
        _EXAMPLES,
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        type=input_file,
        default=HostRoot().status,
        help="what the agent has written (default: %(default)s)",
    )
    add_topology(parser, "the machine to draw", _THIS)
    add_setting(parser, "kubeconfig")
    add_setting(parser, "context")
    parser.add_argument(
        "--node",
        "--node-name",
        metavar="NODE",
        dest="node",
        help="the node whose agent shows its status, for --kubeconfig",
    )
    add_shape(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Show the status; return 1 if a container has wrong CPUs, or no agent runs.

    Raises:
        UsageError: the file cannot be used, or the command line names no agent.
        APIError: the API server does not answer, or refuses.
    """
    if arguments.kubeconfig or arguments.context:
        return _away(arguments, out)
    if arguments.node:
        raise UsageError("--node names a node of a cluster; add --kubeconfig, or leave it out")
    document, age_s = status_file.read(arguments.file)
    status = status_file.parse(arguments.file, document)
    astray = sum(not container.right for container in status.containers)
    if arguments.json:
        out.write(json.dumps(document, indent=2) + "\n")
    else:
        _draw(arguments, status, age_s, out)
    return 1 if astray or status.waiting_for or age_s > SILENT_S else 0


def _away(arguments: argparse.Namespace, out: TextIO) -> int:
    if arguments.svg or arguments.file != HostRoot().status or arguments.topology != _THIS:
        raise UsageError(
            "--file, --topology and --svg name files, and the status is drawn in the agent's pod;"
            " leave them out, or --kubeconfig"
        )
    if not arguments.node:
        raise UsageError("no node is named; give --node, and see `kubectl get nodes`")
    # Only here, so that a node's own status does without a client of the API server.
    from cpupool.commands.shell import agent_pod, services  # noqa: PLC0415

    server = services.api_server("", arguments.kubeconfig, arguments.context)
    ended = agent_pod.run(server, arguments.node, _command(arguments, out))
    door.write_picture(ended.stdout, out)
    if sys.stderr:
        sys.stderr.write(ended.stderr)
    return ended.code


def _command(arguments: argparse.Namespace, out: TextIO) -> Sequence[str]:
    """Return the command for the pod, which has no terminal: it draws in the form for ours."""
    if arguments.json:
        return "cpupool", "status", "--json"
    from cpupool.commands.pictures import drawing  # noqa: PLC0415 - as in _draw

    variables = (f"{name}={value}" for name, value in drawing.terminal(out).items())
    return "env", *variables, "cpupool", "status"


def _draw(arguments: argparse.Namespace, status: NodeStatus, age_s: float, out: TextIO) -> None:
    # Only code that draws imports the drawing library, so that --json stays light.
    from cpupool.commands.pictures import drawing  # noqa: PLC0415

    picture = drawing.node_status(open_machine(arguments.topology), status)
    drawing.show(picture, out)
    if arguments.svg:
        drawing.export_svg(picture, arguments.svg, "cpupool status")
    if age_s > SILENT_S:
        out.write(status_file.silence(age_s))
