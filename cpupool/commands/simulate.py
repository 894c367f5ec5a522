"""`cpupool simulate`: shows where pods would land on a machine, and compares policies."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.commands.pictures.simulation_results import show, to_json
from cpupool.commands.shell import cpu_manager, load_replay, pool_files
from cpupool.commands.shell.beside import excludes, needs
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file, open_machine, read_text, writable
from cpupool.commands.shell.options import (
    add_command,
    add_node_labels,
    add_resource_domain,
    add_topology,
)
from cpupool.commands.shell.reasons import SIMULATION_SCHEMA
from cpupool.core import default_pool
from cpupool.core.cpu_manager import DYNAMIC, Compaction, TopologyPolicy
from cpupool.core.errors import ConfigError, ManifestError
from cpupool.core.names import MOVES, Names
from cpupool.core.workloads import CPUMoves
from cpupool.kube import manifests
from cpupool.kube.earlier_admission import EarlierAdmission
from cpupool.plugins.load_sizing import PERIOD_S
from cpupool.policies.built_in import CHOOSING, assignable
from cpupool.simulate import load_trace, simulation, workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from cpupool.commands.shell.options import Commands
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.simulate.simulation import SimulationResult
    from cpupool.simulate.workload import Event

PLOTS: Final = (".png", ".svg")
_SEED: Final = 1
_LOAD: Final = 0.9
_MOST_PODS: Final = 100_000
_ANY_MOVES: Final = f"add --compact {CPUMoves.ANY.value}"
_EXAMPLES = """\
examples:
  cpupool simulate --pools poolconfig-dpdk.yaml --pods deployment-pods.yaml
  cpupool simulate --topology recorded.tar.gz --pools pools.yaml --trace week.jsonl --plot week.svg
  cpupool simulate --pools pools.yaml --random 10000 --load 0.8 --policy pool kubelet-packed
  cpupool simulate --topology recorded.tar.gz --pools cpu-manager.yaml --random 300 \
      --resizes 0.5 --policy static dynamic
  cpupool simulate --topology recorded.tar.gz --pools cpu-manager.yaml --random 300 \
      --compact any --policy static dynamic
  cpupool simulate --pools pools.yaml --load-trace load.csv

Policies: pool is the pool file's own, that of a package included. A CPU manager policy, as static
or one of a package, is the pool file with this policy, if it has one. first-fit takes the lowest
free ids, as the kubelet does for a device plugin without preferences. kubelet-packed is the
kubelet's static CPU manager. packed, distributed, mostAllocated and leastAllocated are the pool
file with that numaPolicy.

"On one node" and "behind one L3" are shares of the containers that fit on one NUMA node, or behind
one L3 cache, in an empty pool. "In use" is the share of the exclusive pools' CPUs that pods have,
the mean over time. Fragmentation, from 0 to nearly 1, says how scattered the free CPUs are over
NUMA nodes. The free block is the most free CPUs of one pool on one NUMA node at the end. "Held"
pods wait for CPUs of the CPU manager policy; the kubelet refuses such pods. With --compact the
moves are listed that let a waiting pod fit, or bring CPUs closer together.

Exit code 0: it is simulated; 1: under the first policy a pod of --pods is refused, held, or shares
because its CPUs are refused, or a file was not written; 2: the command line is wrong, or a file
that it names cannot be used.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "simulate",
        summary,
        "Places pods on a machine as the scheduler, the kubelet and cpupool would, and compares"
        " policies: the refused pods and why, the CPUs of containers, and how scattered the free"
        " CPUs are. The command runs no pods, and needs no rights.",
        _EXAMPLES,
    )
    add_topology(parser, "the machine", "this")
    parser.add_argument(
        "--pools",
        metavar="FILE",
        type=input_file,
        required=True,
        help="the pool file or ConfigMap manifest of the machine",
    )
    add_node_labels(parser)
    add_resource_domain(parser)
    pods = parser.add_mutually_exclusive_group(required=True)
    pods.add_argument(
        "--pods",
        metavar="FILE",
        type=input_file,
        action="append",
        help="manifests of pods, or of workloads with a template for pods, in this order; may be"
        " given again",
    )
    pods.add_argument(
        "--trace",
        metavar="FILE",
        type=input_file,
        help="pods that start, are resized and end, as JSON lines",
    )
    pods.add_argument(
        "--random", metavar="N", type=_count, help="generate so many pods that start and end"
    )
    pods.add_argument(
        "--load-trace",
        metavar="FILE",
        type=input_file,
        help="replay a recorded load on pools that are sized by it: CSV with at_s and a column of"
        " CPUs for each pool",
    )
    parser.add_argument(
        "--seed", type=int, help=f"the same seed generates the same pods (default: {_SEED})"
    )
    parser.add_argument(
        "--load",
        metavar="SHARE",
        type=_load,
        help=f"the mean share of each pool that random pods request (default: {_LOAD})",
    )
    parser.add_argument(
        "--resizes",
        metavar="SHARE",
        type=_share,
        help="the share of the random pods with CPUs of the CPU manager policy that are resized in"
        " place once (default: 0)",
    )
    parser.add_argument(
        "--save-trace", metavar="FILE", type=writable, help="write the pods as a trace, too"
    )
    parser.add_argument(
        "--policy",
        metavar="NAME",
        type=_policy,
        nargs="+",
        default=[simulation.POOL, simulation.FIRST_FIT],
        help=f"what to compare, of {', '.join(simulation.POLICIES)}, and CPU manager policies of"
        " packages (default: pool first-fit)",
    )
    parser.add_argument(
        "--compact",
        metavar="WORD",
        nargs="?",
        const=CPUMoves.NEVER.value,
        choices=[moves.value for moves in CPUMoves],
        help="move containers under the policy dynamic, also if the pool file has no compaction;"
        " pods without the annotation cpu-moves are taken for ones with WORD: never (default),"
        " same-l3, same-numa or any",
    )
    parser.add_argument(
        "--topology-manager",
        choices=[policy.value for policy in TopologyPolicy if policy.of_kubelet],
        default=TopologyPolicy.NONE.value,
        help="the kubelet's topologyManagerPolicy (default: %(default)s, as the kubelet's)",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=_plot_file,
        help=f"plot the policies over time, as {' or '.join(PLOTS)}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    excludes(
        parser,
        "--seed --load --resizes --save-trace --policy --compact --topology-manager --plot",
        "--load-trace",
    )
    needs(parser, "--seed --load --resizes", "--random")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Simulate, and show the outcome for the pods.

    Returns:
        1 where a pod of `--pods` is refused, held or shares under the first policy.

    Raises:
        UsageError: a file cannot be used, or an option has no meaning here.
        OSError: a file cannot be written.
    """
    export = _exporter() if arguments.plot else None
    names = Names(arguments.resource_domain)
    topology = open_machine(arguments.topology)
    _, file = pool_files.choose(arguments.pools, arguments.node_labels, names, topology)
    if arguments.load_trace:
        return _replay(arguments, file.pools, topology, out)
    policies = list(dict.fromkeys(arguments.policy))
    pools = _compacted(arguments, file.pools) if arguments.compact else file.pools
    others = [name for name in policies if name not in simulation.POLICIES]
    installed = {name: found for name in others if (found := cpu_manager.of_package(name))}
    try:
        given = _events(arguments, names, file.pools, topology)
        events = given
        if arguments.compact:
            events = tuple(workload.movable(given, CPUMoves(arguments.compact)))
        with _progress(len(events) * len(policies)) as tell:
            results = simulation.compare(
                topology,
                pools,
                events,
                policies,
                installed=installed,
                manager=TopologyPolicy(arguments.topology_manager),
                tell=tell,
            )
    except ConfigError as error:
        raise UsageError(error) from error
    if arguments.save_trace:
        arguments.save_trace.write_text(workload.write(given), "utf-8")
    if export:
        arguments.plot.write_bytes(export(results, arguments.plot.suffix))
    if arguments.json:
        document = {"schema": SIMULATION_SCHEMA, "topology_manager": arguments.topology_manager}
        policies_json = {name: to_json(result) for name, result in results.items()}
        out.write(json.dumps({**document, "policies": policies_json}, indent=2) + "\n")
    else:
        chooses = file.pools.cpu_manager.chooses
        show(topology, results, out, listed=bool(arguments.pods), chooses=chooses)
        if not any(result.moves for result in results.values()):
            _tell_why_none_moves(pools, policies, events, out)
    first = results[policies[0]]
    unserved = first.refusals or any(placed.held or placed.shares for placed in first.running)
    return 1 if arguments.pods and unserved else 0


def _compacted(arguments: argparse.Namespace, pools: NodePools) -> NodePools:
    """Return the pools with compaction.

    The pods of `--pods` come at one time, so none is too young to move.
    """
    compaction = pools.cpu_manager.compaction or Compaction()
    if arguments.pods:
        compaction = replace(compaction, minimum_age_s=0)
    return replace(pools, cpu_manager=replace(pools.cpu_manager, compaction=compaction))


def _tell_why_none_moves(
    pools: NodePools, policies: Iterable[str], events: Iterable[Event], out: TextIO
) -> None:
    """Say what is missing if compaction is on, and no container may move."""
    manager = pools.cpu_manager
    if manager.compaction is None:
        return
    # The other names are policies of pools, beside the pool file's CPU manager policy.
    of_pools = set(simulation.POLICIES) - set(CHOOSING) - {simulation.KUBELET_PACKED}
    if DYNAMIC not in {manager.policy if name in of_pools else name for name in policies}:
        out.write(f"No policy here moves containers: add --policy {DYNAMIC}.\n")
    elif spreading := manager.options.spreading:
        out.write(f"The option {spreading} lets no container move: turn it off.\n")
    elif all(event.pod.cpu_moves is CPUMoves.NEVER for event in events):
        out.write(f"No pod here may move: give pods the annotation {MOVES}, or {_ANY_MOVES}.\n")


def _replay(
    arguments: argparse.Namespace, pools: NodePools, topology: CPUTopology, out: TextIO
) -> int:
    """Replay a load on the CPUs of the CPU manager, or of the default pool."""
    cpus = assignable(pools, topology) or default_pool.online(pools, topology)
    name = str(arguments.load_trace)
    try:
        load = load_trace.read(name, read_text(arguments.load_trace), PERIOD_S)
    except ConfigError as error:
        raise UsageError(error) from error
    load_replay.replay(load, len(cpus), out, as_json=arguments.json)
    return 0


def _exporter() -> Callable[[Mapping[str, SimulationResult], str], bytes]:
    """Find the plotting library before the simulation runs."""
    try:
        from cpupool.commands.pictures import plotting  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "--plot draws with matplotlib, which is missing; in cpupool's folder:"
            " pip install '.[plot]'"
        ) from error
    return plotting.plot


def _events(
    arguments: argparse.Namespace, names: Names, pools: NodePools, topology: CPUTopology
) -> Sequence[Event]:
    if arguments.random is not None:
        seed = _SEED if arguments.seed is None else arguments.seed
        load = _LOAD if arguments.load is None else arguments.load
        return tuple(
            workload.made_up(
                topology,
                pools,
                arguments.random,
                seed=seed,
                load=load,
                resizes=arguments.resizes or 0,
            )
        )
    if arguments.trace:
        return workload.read(str(arguments.trace), read_text(arguments.trace))
    events = list(_arrivals(arguments.pods, names))
    called = Counter(event.pod.uid for event in events)
    if twice := [name for name, times in called.items() if times > 1]:
        raise UsageError(f"--pods: there are two pods {twice[0]}; rename one")
    return events


def _arrivals(paths: Iterable[Path], names: Names) -> Iterator[Event]:
    """Read the pods of some files; all come at once."""
    try:
        read = {path: manifests.read(str(path), read_text(path)) for path in paths}
        earlier = EarlierAdmission.of(other for found in read.values() for other in found.others)
        beside = any(found.pods for found in read.values())
        for path, found in read.items():
            if not beside:
                found.refuse_others_alone()
            if not found.pods and not (beside and found.others):
                raise UsageError(f"{path}: there is no pod in it; name a file with one")
            for body in map(earlier.completed, found.pods):
                yield workload.arrival_of(body, names)
    except ManifestError as error:
        raise UsageError(f"--pods: {error}") from error


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Show the progress on a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None
        return
    # Imported only by code that draws, so that --json needs no drawing library.
    from cpupool.commands.pictures import drawing  # noqa: PLC0415

    with drawing.progress("simulating", total, sys.stderr) as tell:
        yield tell


def _policy(text: str) -> str:
    if text in simulation.POLICIES or cpu_manager.of_package(text):
        return text
    near = difflib.get_close_matches(text, simulation.POLICIES, n=1)
    known = ", ".join(simulation.POLICIES)
    hint = f"did you mean {near[0]}?" if near else f"use one of {known}"
    raise argparse.ArgumentTypeError(f"{text!r} is no policy; {hint}")


def _count(text: str) -> int:
    with suppress(ValueError):
        if 1 <= (given := int(text)) <= _MOST_PODS:
            return given
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MOST_PODS:,}")


def _load(text: str) -> float:
    with suppress(ValueError):
        if 0.01 <= (given := float(text)) <= 10:
            return given
    raise argparse.ArgumentTypeError(f"{text!r} is not between 0.01 and 10; 1 is all of a pool")


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (given := float(text)) <= 1:
            return given
    raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1; 1 is every such pod")


def _plot_file(text: str) -> Path:
    path = writable(text)
    if path.suffix not in PLOTS:
        raise argparse.ArgumentTypeError(f"{text} ends in neither {' nor '.join(PLOTS)}")
    return path
