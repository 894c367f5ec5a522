"""`cpupool explain`: shows step by step why a container has its CPUs, or none."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, Final, TextIO

from cpupool.commands.checks.node_checks import SILENT_S
from cpupool.commands.shell import away, door, status_file
from cpupool.commands.shell.beside import excludes, needs
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file, open_machine
from cpupool.commands.shell.options import add_command, add_resource_domain, add_shape, add_topology
from cpupool.commands.shell.reasons import SIMULATION_SCHEMA, in_simulation, on_node
from cpupool.core.cpuset import CPUSet
from cpupool.host.root import HostRoot
from cpupool.plugins.pool_loop import SCHEMA as POOLS_SCHEMA
from cpupool.plugins.pool_loop import WRITER
from cpupool.wire.json_text import Fields, JSONRefused

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from cpupool.commands.shell.options import Commands
    from cpupool.commands.shell.reasons import Explanation

SCHEMA: Final = "cpupool-explanation/1"
_REFUSED: Final = (
    "look at `cpupool status` for what runs here, and at `kubectl describe pod` for why a pod was"
    " refused: its events have cpupool's sentence"
)
_NOT_SIMULATED: Final = (
    "simulate it, too; a simulation does not list a container that only shares the default pool"
)
_EXAMPLES = f"""\
examples:
  cpupool explain default/web/main
  cpupool explain web --json | jq '.containers[].steps[] | [.rule, .why, .left]'
  cpupool explain default/web --file simulation.json --policy packed
  cpupool explain default/web --kubeconfig ~/.kube/config
  cpupool explain --pools

With --kubeconfig or --context the command asks the API server for the pod, its node's labels, the
pool files, and the agent's Events. Only the node knows the CPUs of the pod.

With --pools the command explains why the pools of `{WRITER}` have their CPUs.

The namespace may be left out if only one pod has the name. Without a container the command explains
all containers of the pod. Each line ends with the CPUs that remain after it.

Exit code 0: the container has the CPUs that it must have; 1: it does not, the agent has not written
its status for a while, or the agent has warned of the pod; 2: the command line is wrong, the file
cannot be read, or there is no such container.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "explain",
        summary,
        "Explains why a container has its CPUs, from the request to its cgroup: on this node, as"
        " the agent last saw it, or in a simulation. The steps named resize are the last eight"
        " changes of its own CPUs.",
        _EXAMPLES,
    )
    parser.add_argument(
        "container",
        metavar="NAMESPACE/POD[/CONTAINER]",
        nargs="?",
        help="the container, or its pod",
    )
    parser.add_argument(
        "--pools",
        metavar="FILE",
        type=input_file,
        nargs="?",
        const=HostRoot().plugin_pools,
        help="explain the pools of our plugin for CPUs instead, from what it has written (without"
        " FILE: %(const)s)",
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        type=input_file,
        default=HostRoot().status,
        help="what the agent, or `cpupool simulate --json`, has written (default: %(default)s)",
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="which policy of a simulation (default: its first)"
    )
    add_topology(parser, "the machine to draw, instead of this one for an agent's file", None)
    away.add_arguments(parser)
    add_resource_domain(parser)
    add_shape(parser)
    excludes(parser, "--file --configmap --resource-domain", "--pools")
    excludes(parser, "--file", "--kubeconfig --context")
    needs(parser, "--resource-domain", "--kubeconfig --context")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Explain; return 1 if a container has wrong CPUs, or no agent, or no plugin, runs.

    Raises:
        UsageError: the file cannot be used, or has no such container.
    """
    if arguments.container is arguments.pools is None:
        raise UsageError("name a container or its pod, or add --pools")
    if arguments.container and arguments.pools:
        raise UsageError("--pools explains this node's pools, and no container; leave one out")
    if arguments.pools:
        return _pools(arguments, out)
    if away.is_asked(arguments):
        return _away(arguments, out)
    document, age_s = status_file.read(arguments.file, others="cpupool simulate --json")
    schema = document.get("schema") if isinstance(document, dict) else None
    kind, _, _ = SIMULATION_SCHEMA.partition("/")
    simulated = str(schema).startswith(f"{kind}/")
    machine = arguments.topology or (None if simulated else "this")
    if arguments.svg and not machine:
        raise UsageError("--svg draws a machine; name the simulated one with --topology")
    explained = (_simulation if simulated else _node)(arguments, document)
    silent = not simulated and age_s > SILENT_S
    _write(explained, out, as_json=arguments.json)
    if not arguments.json:
        if machine:
            _draw(machine, explained, arguments.svg, out)
        if silent:
            out.write(status_file.silence(age_s))
    return 0 if all(explanation.right for explanation in explained) and not silent else 1


def _pools(arguments: argparse.Namespace, out: TextIO) -> int:
    if away.is_asked(arguments) or arguments.policy or arguments.topology or arguments.svg:
        raise UsageError("--pools explains this node's pools; of the other options it has --json")
    document, age_s = status_file.read(arguments.pools, WRITER, "--pools FILE")
    try:
        top = Fields.of(document)
        if (schema := top.get("schema", str)) != POOLS_SCHEMA:
            raise top.refusal("schema", f"is {schema[:60]!r}, and not {POOLS_SCHEMA}")
        lines = [*map(_of_pool, top.objects("pools"))]
        if headroom := top.part("headroom"):
            lines.append(f"headroom: {headroom.get('why', str)}")
    except JSONRefused as error:
        raise UsageError(
            f"{arguments.pools} is not of this version's `{WRITER}`: {error}; restart that"
        ) from error
    if arguments.json:
        out.write(json.dumps(document, indent=2) + "\n")
    else:
        for line in lines:
            door.tell(line, out)
    if age_s <= SILENT_S:
        return 0
    if not arguments.json:
        out.write(
            f"This is {age_s:.0f} s old: the plugin does not run, or cannot write its file.\n"
        )
    return 1


def _of_pool(pool: Fields) -> str:
    cpus = pool.read("cpus", CPUSet.parse)
    return f"{pool.get('pool', str)}: {cpus} ({len(cpus)} CPUs): {pool.get('why', str)}"


def _away(arguments: argparse.Namespace, out: TextIO) -> int:
    if arguments.policy or arguments.topology or arguments.svg:
        raise UsageError("--policy, --topology and --svg need a file; leave --kubeconfig out")
    explained = away.away(arguments).explain(arguments.container)
    _write(explained, out, as_json=arguments.json)
    return 0 if all(explanation.right for explanation in explained) else 1


def _write(explained: Sequence[Explanation], out: TextIO, *, as_json: bool) -> None:
    if as_json:
        containers = [explanation.to_json() for explanation in explained]
        out.write(json.dumps({"schema": SCHEMA, "containers": containers}, indent=2) + "\n")
        return
    for explanation in explained:
        _tell(explanation, out)


def _node(arguments: argparse.Namespace, document: Mapping[str, Any]) -> Sequence[Explanation]:
    status = status_file.parse(arguments.file, document)
    if arguments.policy:
        raise UsageError("--policy is for simulations; name one with --file, or leave it out")
    if status.waiting_for:
        raise UsageError(
            f"the agent waits for {status.waiting_for}, and has not looked at any container; see"
            " `cpupool doctor`"
        )
    names = _find(
        [container.name for container in status.containers], arguments.container, _REFUSED
    )
    return [
        on_node(status, container) for container in status.containers if container.name in names
    ]


def _simulation(
    arguments: argparse.Namespace, document: Mapping[str, Any]
) -> Sequence[Explanation]:
    try:
        top = Fields.of(document)
        if (schema := top.get("schema", str)) != SIMULATION_SCHEMA:
            raise top.refusal("schema", f"is {schema[:60]!r}, and not {SIMULATION_SCHEMA}")
        policies = top.within("policies")
        policy = arguments.policy or next(iter(policies.members), "")
        if policy not in policies.members:
            has = ", ".join(policies.members) or "none"
            raise UsageError(f"{arguments.file} has no policy {policy!r}; it has {has}")
        placements = [*map(in_simulation, policies.within(policy).objects("containers"))]
    except JSONRefused as error:
        raise UsageError(
            f"{arguments.file} is no simulation of this version of cpupool: {error}; write it with"
            " `cpupool simulate --json`"
        ) from error
    names = _find(
        [explanation.name for explanation in placements], arguments.container, _NOT_SIMULATED
    )
    return [explanation for explanation in placements if explanation.name in names]


def _find(names: Sequence[str], asked: str, otherwise: str) -> set[str]:
    """Return the container of this name, or the containers of the pod.

    Args:
        names: of all containers.
        asked: the name on the command line.
        otherwise: what to do about a name that is no slip of the pen.

    Raises:
        UsageError: there is none, or several pods have the name.
    """
    if asked in names and asked.count("/") == 2:
        return {asked}
    by_pod: dict[str, list[str]] = {}
    for name in names:
        by_pod.setdefault("/".join(name.split("/")[:2]), []).append(name)
    pods = [pod for pod in by_pod if asked in {pod, pod.partition("/")[2]}]
    if len(pods) > 1:
        raise UsageError(f"{asked!r} is the name of several pods; say which: {', '.join(pods)}")
    if pods:
        # A pod's sandbox is of no interest while the pod has containers.
        of_pod = by_pod[pods[0]]
        return {name for name in of_pod if name.count("/") == 2} or set(of_pod)
    alike = {0: {pod.partition("/")[2] for pod in by_pod}, 1: set(by_pod)}
    near = difflib.get_close_matches(asked, sorted(alike.get(asked.count("/"), names)), n=3)
    hint = f"did you mean {' or '.join(near)}? Else " if near else ""
    raise UsageError(f"there is no container or pod {asked!r} here; {hint}{otherwise}")


def _tell(explanation: Explanation, out: TextIO) -> None:
    cpus = "known on its node" if explanation.cpus is None else explanation.cpus or "no CPUs"
    door.tell(f"{explanation.name}: {cpus}", out)
    for number, step in enumerate(explanation.steps, 1):
        door.tell(f"{number:>3}. {step.rule}: {step.why} => {step.left or 'none'}", out)


def _draw(machine: str, explained: Iterable[Explanation], svg: Path | None, out: TextIO) -> None:
    # Only code that draws imports the drawing library, so that --json stays light.
    from cpupool.commands.pictures import drawing, painting  # noqa: PLC0415

    groups = [(explanation.name, explanation.cpus or CPUSet()) for explanation in explained]
    theirs = CPUSet.union(cpus for _, cpus in groups)
    groups.append(
        (
            "others of the same pools",
            CPUSet.union(explanation.pools for explanation in explained) - theirs,
        )
    )
    picture = drawing.Picture(open_machine(machine), painting.paint(groups))
    drawing.show(picture, out)
    if svg:
        drawing.export_svg(picture, svg, "cpupool explain")
