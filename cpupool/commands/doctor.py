"""`cpupool doctor`: reads the facts about a node, and has each judged by `checks`.

A fact that cannot be read is a row of its own and stops no other check.
"""

from __future__ import annotations

import json
import os
import tempfile
import textwrap
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from cpupool.commands.checks import (
    cpu_checks,
    findings,
    koordinator_checks,
    node_checks,
    plugin_checks,
    runtime_checks,
    topology_checks,
)
from cpupool.commands.checks.findings import Row, Verdict
from cpupool.commands.shell import away, cpu_manager, node
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file
from cpupool.commands.shell.options import NODE_NAME, add_command, add_setting
from cpupool.config import kubelet_config, pool_selection, poolconfig
from cpupool.config.kubelet_settings import KubeletNeeds
from cpupool.config.pool_rules import suits_static_kubelet, validate
from cpupool.config.pool_selection import Machine
from cpupool.config.poolconfig import Source
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import advertised
from cpupool.core.errors import (
    ConfigError,
    CPUPoolError,
    HostFileError,
    ProtocolError,
    errors_in,
    refuse_errors,
)
from cpupool.core.names import STARTER
from cpupool.core.pools import PoolKind
from cpupool.host import cgroup_names, processes
from cpupool.host.cgroupfs import CgroupFS, hierarchy
from cpupool.host.installed_policies import find_policy, installed, known
from cpupool.host.interrupts import interrupts
from cpupool.host.pool_files import read_pool_files
from cpupool.host.sockets import is_there, listens
from cpupool.host.sysfs import Sysfs
from cpupool.kube.client import APIError
from cpupool.kubelet.podresources import PodResources
from cpupool.policies import built_in
from cpupool.runtime.cri import CRI
from cpupool.wire import device_checkpoint

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cpupool.commands.shell.node import NodeSources
    from cpupool.commands.shell.options import Commands
    from cpupool.config.kubelet_settings import KubeletConfig
    from cpupool.config.pool_file import PoolFile
    from cpupool.core.errors import Problem
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology
    from cpupool.manager.report import NodeStatus
    from cpupool.policies.base import CPUManagerPolicy

_EXAMPLES = """\
examples:
  cpupool doctor
  cpupool doctor --node-labels nodeType=dpdk --kubelet-config /etc/kubernetes/kubelet.yaml
  cpupool doctor --bundle cpupool-support-node1.tar.gz --json
  cpupool doctor --bundle node1.tar.gz --kubeconfig ~/.kube/config --node-name node1

With --kubeconfig or --context, and --node-name, the command asks the API server for the node's
labels, the pool files and the kubelet's configuration, if the command line does not name them, and
for the programs that write the node's NodeResourceTopology.

Run it on the node as root, so that it sees the host's daemons and sockets. Elsewhere it marks facts
that it cannot see as `unseen`. `cpupool support-bundle` writes a bundle.

Exit code 0: nothing is wrong, warnings apart; 1: there is a problem; 2: the command line is wrong,
or a file that it names cannot be used.
"""
_SCHEMA: Final = "cpupool-doctor/1"
_WIDTH: Final = 80
_PEER_S: Final = 5.0
"""The time that a kubelet or a runtime may take on a busy node; the agent cannot wait so long."""
_NOT_IN_BUNDLE: Final = ("not in a bundle", "run this on the node, as root")
_NAME_POOLS: Final = "name the node's pool file with --config"
_KUBELET_CONFIG: Final = (
    "run this on the node, or name the file with --kubelet-config; in a container -, with"
    " the answer of `kubectl get --raw /api/v1/nodes/NODE/proxy/configz` piped in"
)


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "doctor",
        summary,
        "Checks a node: its kubelet, cgroups, pools and isolation, the agent and its containers.",
        _EXAMPLES,
    )
    parser.add_argument(
        "--bundle", metavar="FILE", type=input_file, help="examine this support bundle instead"
    )
    node.add_arguments(parser)
    add_setting(parser, "node-name")
    parser.set_defaults(node_name=os.environ.get(NODE_NAME, ""))
    away.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Examine the node and print a row for each check.

    Returns:
        1 where one of them is a problem.

    Raises:
        UsageError: a file or option of the command line cannot be used.
    """
    with ExitStack() as opened:
        if arguments.bundle:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="cpupool-"))
            examined = node.recorded_node(arguments, arguments.bundle, Path(folder))
        else:
            examined = node.this_node(arguments)
        if away.is_asked(arguments):
            shown = opened.enter_context(tempfile.TemporaryDirectory(prefix="cpupool-"))
            examined = node.of_cluster(examined, arguments, Path(shown))
        rows = _examine(examined)
    if arguments.json:
        listed = [{**asdict(row), "verdict": row.verdict.value} for row in rows]
        out.write(json.dumps({"schema": _SCHEMA, "checks": listed}, indent=2) + "\n")
    else:
        _draw(rows, out)
    return 1 if any(row.verdict is Verdict.PROBLEM for row in rows) else 0


def _draw(rows: Sequence[Row], out: TextIO) -> None:
    # Imported only here, so that --json needs no drawing library.
    from cpupool.commands.pictures import drawing  # noqa: PLC0415

    drawing.show(drawing.checks(rows), out)
    counts = Counter(row.verdict for row in rows)
    summary = ", ".join(
        f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict]
    )
    unseen = dict.fromkeys(row.check for row in rows if row.verdict is Verdict.UNSEEN)
    if unseen:
        said = f"not seen: {', '.join(unseen)}; their rows say what makes them visible"
        out.write(f"\n{textwrap.fill(said, _WIDTH)}\n")
    out.write(f"\n{summary}\n")


@dataclass(frozen=True, slots=True)
class _Known:
    """The facts that several checks need.

    Attributes:
        node: where the facts are.
        topology: the machine.
        status: the agent's status, and its age in seconds; None without.
        pools: those in force, or those of the node's pool file while the agent has none; None
            where neither is known.
    """

    node: NodeSources
    topology: CPUTopology
    status: tuple[NodeStatus, float] | None
    pools: NodePools | None

    @property
    def exclusive(self) -> CPUSet:
        """The CPUs that only their owners may use."""
        pools = self.pools.of_kind(PoolKind.EXCLUSIVE) if self.pools else ()
        return CPUSet.union(pool.reach(self.topology) for pool in pools)

    @property
    def policy(self) -> type[CPUManagerPolicy]:
        """The CPU manager policy; that of no pool file where none is known."""
        return built_in.kind(self.pools.cpu_manager if self.pools else CPUManager())


def _examine(examined: NodeSources) -> list[Row]:
    try:
        topology = Sysfs.at(examined.root.sysfs).topology()
    except HostFileError as error:
        raise UsageError(error) from error
    rows: list[Row] = []
    looks = dict(_CHECKS)
    status: tuple[NodeStatus, float] | None = None
    try:
        status = examined.status()
    except HostFileError as error:
        rows += _failed("agent", error)
        # A file that is out of sight says nothing about the agent.
        del looks["agent"]
    in_force = known(status[0].pools) if status and status[0].pools.places else None
    file: PoolFile | None = None
    try:
        files = _pool_files(examined, topology)
        file = _choose(files, examined.labels, topology)
        rows += node_checks.pool_file(file, in_force, of=len(files), labels=examined.labels)
    except CPUPoolError as error:
        rows += _failed("pool file", error)
    pools = in_force or (file.pools if file else None)
    facts = _Known(examined, topology, status, pools)
    for check, look in looks.items():
        try:
            rows += look(facts)
        except APIError as error:
            rows += _failed(check, error, Verdict.UNSEEN)
        except CPUPoolError as error:
            rows += _failed(check, error)
    return rows


def _failed(check: str, error: CPUPoolError, verdict: Verdict = Verdict.PROBLEM) -> Iterable[Row]:
    if isinstance(error, ConfigError):
        return findings.problems(check, error.problems, "")
    fact, _, remedy = str(error).rpartition("; ")
    return [Row(check, verdict, fact, remedy)]


def _pool_files(examined: NodeSources, topology: CPUTopology) -> Sequence[PoolFile]:
    """Read the pool files; none where there are none to be seen.

    Raises:
        ConfigError: one of them cannot be used.
        HostFileError: they cannot be read.
    """
    problems: list[Problem] = []
    found: Sequence[Source]
    text = node.read(examined.config)
    if text is not None:
        found = poolconfig.sources(examined.shown(examined.config), text, problems)
    elif examined.config.is_dir():
        found = [Source.of(*item) for item in read_pool_files(examined.config).items()]
    else:
        return ()
    known = examined.labels is not None or len(found) == 1
    machine = Machine(topology, examined.labels) if known else None
    files = poolconfig.parse_all(found, examined.names, problems, machine, find_policy)
    refuse_errors([*problems, *pool_selection.rivals(files)])
    return files


def _choose(
    files: Sequence[PoolFile], labels: Mapping[str, str] | None, topology: CPUTopology
) -> PoolFile | None:
    """Choose the node's pool file; None where it has none, or its file is not known.

    Raises:
        ConfigError: there are two, or it does not fit the machine.
    """
    if labels is not None:
        chosen = pool_selection.select(files, labels)
    else:
        chosen = files[0] if len(files) == 1 else None
    if chosen:
        refuse_errors(cpu_manager.problems(chosen, topology))
    return chosen


def _agent(known: _Known) -> Iterable[Row]:
    return node_checks.agent(known.status, known.node.ask_agent(node.READY))


def _rights(known: _Known) -> Iterable[Row]:
    yield node_checks.rights(known.status, known.node.ask_agent(node.METRICS))


def _node_topology(known: _Known) -> Iterable[Row]:
    asked = known.node.topology()
    metrics = known.node.ask_agent(node.METRICS)
    yield from topology_checks.node_topology(metrics, asked)
    assigned = known.status is not None and any(
        container.assigned for container in known.status[0].containers
    )
    yield from koordinator_checks.untold(metrics, asked, assigned=assigned)


def _cgroups(known: _Known) -> Iterable[Row]:
    base, version = hierarchy(known.node.root.cgroup)
    places = cgroup_names.kubepods(known.node.root.cgroup_root)
    yield node_checks.cgroups(
        version, places, [place for place in places if (base / place).is_dir()]
    )
    status = known.status and known.status[0]
    recorded = status.withheld if status else ()
    yield from cpu_checks.withheld(recorded if known.node.bundle else known.node.usable().withheld)


def _kubelet(known: _Known) -> Iterable[Row]:
    config = known.node.kubelet()
    if config is None:
        place = known.node.shown(known.node.kubelet_config)
        fact = f"its configuration is not known: there is no {place}"
        return [Row("kubelet", Verdict.UNSEEN, fact, _KUBELET_CONFIG)]
    if known.pools is None:
        fact = "its configuration is compared with pools, and none are known"
        return [Row("kubelet", Verdict.UNSEEN, fact, _NAME_POOLS)]
    assignable = built_in.assignable(known.pools, known.topology)
    needs = KubeletNeeds.of(known.pools, known.topology, assignable=assignable)
    return findings.problems("kubelet", kubelet_config.check(config, needs), config.describe(needs))


def _cpu_manager(known: _Known) -> Iterable[Row]:
    state: bytes | None = None
    # In a container it is out of sight; then the kubelet's answer has to do.
    with suppress(OSError):
        state = known.node.root.cpu_manager_state.read_bytes()
    config = _kubelet_config(known)
    configured = config.known_cpu_manager if config else None
    allocatable: CPUSet | None = None
    if known.node.bundle is None:
        # Another check reports that it does not answer.
        with suppress(ProtocolError):
            asked = PodResources(known.node.root.podresources_socket, timeout_s=_PEER_S)
            allocatable = asked.allocatable_cpus()
    kept = CPUSet()
    if known.pools is not None and suits_static_kubelet(known.pools):
        assignable = built_in.assignable(known.pools, known.topology)
        needs = KubeletNeeds.of(known.pools, known.topology, assignable=assignable)
        kept = needs.online - needs.given
    yield from node_checks.cpu_manager(state, configured, allocatable, known.pools, kept)


def _agent_away(known: _Known) -> Iterable[Row]:
    if known.pools is None or not known.pools.cpu_manager.chooses:
        return ()
    return (runtime_checks.agent_away(list(known.node.runtime_configurations())),)


def _policies(found: _Known) -> Iterable[Row]:
    if found.node.bundle is None:
        yield from node_checks.policies(installed())


def _koordlet(known: _Known) -> Iterable[Row]:
    found = known.node.command_lines(koordinator_checks.PROGRAM)
    return koordinator_checks.koordlet(found, rival=known.policy.reads_classes)


def _plugins(known: _Known) -> Iterable[Row]:
    status = known.status and known.status[0]
    sockets, missing = known.node.sockets(status.plugin_folders if status else ())
    return plugin_checks.plugins(status, sockets, missing, decide=known.policy.asks_plugins)


def _cpuset_writers(known: _Known) -> Iterable[Row]:
    found = known.node.command_lines(*plugin_checks.PROGRAMS)
    return plugin_checks.writers(found, decide=known.policy.asks_plugins)


def _memory_manager(known: _Known) -> Iterable[Row]:
    status = known.status and known.status[0]
    return plugin_checks.memory_manager(known.node.memory_manager, status)


def _misfits(known: _Known) -> Iterable[Row]:
    if known.status and known.pools and known.pools.cpu_manager.chooses:
        writer = known.status[0].enforcement
        yield runtime_checks.misfits(known.pools.cpu_manager.on_misfit, writer)


def _kubelet_config(known: _Known) -> KubeletConfig | None:
    """Return the kubelet's configuration; None if it is not known, or damaged."""
    # The row `kubelet` says what is wrong with it.
    with suppress(CPUPoolError):
        return known.node.kubelet()
    return None


def _feature_gates(known: _Known) -> Mapping[str, bool]:
    config = _kubelet_config(known)
    return config.feature_gates if config else {}


def _bubbles(known: _Known) -> Iterable[Row]:
    if known.pools is None:
        return ()
    status = known.status and known.status[0]
    return cpu_checks.pod_level(known.pools.cpu_manager, status, _feature_gates(known))


def _resizes(known: _Known) -> Iterable[Row]:
    if not known.policy.resizes or known.pools is None:
        return ()
    gates = _feature_gates(known)
    policy, version = known.pools.cpu_manager.named, known.node.kubelet_version()
    writer = known.status and known.status[0].enforcement
    return runtime_checks.resizes(policy, writer, gates, version)


def _kubelet_cpus(known: _Known) -> Iterable[Row]:
    config = _kubelet_config(known)
    policy = config.known_cpu_manager if config else None
    return node_checks.kubelet_cpus(known.node.kubelet_cpus(), known.topology.online, policy)


def _device_plugins(known: _Known) -> Iterable[Row]:
    if known.node.bundle:
        yield Row("device plugins", Verdict.UNSEEN, *_NOT_IN_BUNDLE)
        return
    ours = known.node.root.device_plugins.glob("cpupool-*.sock")
    yield node_checks.device_plugins(
        listening=listens(known.node.root.kubelet_socket, _PEER_S),
        serving=sum(listens(path, _PEER_S) for path in ours),
        expected=len(advertised(known.pools)) if known.pools else 0,
    )


def _starter(known: _Known) -> Iterable[Row]:
    if known.node.bundle:
        yield Row("starter", Verdict.UNSEEN, *_NOT_IN_BUNDLE)
        return
    files = known.node.root.starters.glob(f"*/{Path(STARTER).name}")
    yield node_checks.starter(
        can_run=any(file.is_file() and os.access(file, os.X_OK) for file in files)
    )


def _podresources(known: _Known) -> Iterable[Row]:
    if known.node.bundle:
        yield Row("podresources", Verdict.UNSEEN, *_NOT_IN_BUNDLE)
        return
    pods = PodResources(known.node.root.podresources_socket, timeout_s=_PEER_S).by_pod_name()
    yield Row("podresources", Verdict.OK, f"the kubelet tells of {len(pods)} pods")


def _container_runtime(known: _Known) -> Iterable[Row]:
    if known.node.bundle:
        yield Row("container runtime", Verdict.UNSEEN, *_NOT_IN_BUNDLE)
        return
    root, name = known.node.root, ""
    try:
        name, version = CRI(root.cri_sockets, known.node.names).version()
        yield Row("container runtime", Verdict.OK, f"{name} {version} answers CRI calls")
    except ProtocolError as error:
        # The agent does without it: the API server reports containers, only later.
        yield from _failed("container runtime", error, Verdict.WARNING)
    # The runtime takes a program that connects to its NRI socket for a plugin.
    yield runtime_checks.nri(name, known.status, offered=is_there(root.nri_socket))


def _checkpoint(known: _Known) -> Iterable[Row]:
    text = node.read(known.node.root.checkpoint)
    if text is None:
        yield Row("checkpoint", Verdict.OK, "there is none: no pod has had devices yet")
        return
    found = device_checkpoint.parse(text)
    ours = {entry.pod_uid for entry in found.entries if known.node.names.pool_of(entry.resource)}
    yield Row("checkpoint", Verdict.OK, f"{len(ours)} pods have devices of pools")


def _pools(known: _Known) -> Iterable[Row]:
    if known.pools is None:
        fact = "none are known, so nothing is compared with them"
        yield Row("pools", Verdict.UNSEEN, fact, _NAME_POOLS)
        return
    found = validate(known.pools, known.node.usable())
    if not errors_in(found):
        found = (*found, *cpu_manager.refusal(known.pools, known.topology))
    fine = "they fit the machine, and all their CPUs are online"
    yield from findings.problems("pools", found, fine)
    root, exclusive = known.node.root, known.exclusive
    yield from cpu_checks.isolation(known.pools, known.topology, Sysfs.at(root.sysfs).tickless())
    yield cpu_checks.interrupts(list(interrupts(root.proc)), exclusive)
    others = known.topology.online - exclusive
    yield cpu_checks.daemons(list(processes.daemons(root.proc)), exclusive, others)


def _containers(known: _Known) -> Iterable[Row]:
    if known.status and not known.status[0].waiting_for:
        yield from node_checks.containers(known.status[0])


def _owners(known: _Known) -> Iterable[Row]:
    if known.pools:
        tree = CgroupFS(known.node.root.cgroup, known.node.root.cgroup_root)
        yield cpu_checks.owners(tree.containers(), known.exclusive)


def _affinity(known: _Known) -> Iterable[Row]:
    root = known.node.root
    yield from cpu_checks.runtimes(list(processes.runtimes(root.proc, root.cgroup)))
    containers = known.status[0].containers if known.status else ()
    owners = {container.name: container.exclusive for container in containers}
    tree = CgroupFS(root.cgroup, root.cgroup_root)
    found = (
        (CPUSet.parse(each.cpus), processes.threads(root.proc, tree.directory(each.path)))
        for each in tree.containers()
    )
    yield from cpu_checks.kept_threads(found, owners)


_CHECKS: Final[Mapping[str, Callable[[_Known], Iterable[Row]]]] = {
    "agent": _agent,
    "rights": _rights,
    topology_checks.CHECK: _node_topology,
    "cgroups": _cgroups,
    "kubelet": _kubelet,
    node_checks.KUBELET_CPUS: _kubelet_cpus,
    "CPU manager": _cpu_manager,
    "agent away": _agent_away,
    "misfits": _misfits,
    runtime_checks.RESIZES: _resizes,
    cpu_checks.BUBBLES: _bubbles,
    node_checks.POLICIES: _policies,
    koordinator_checks.CHECK: _koordlet,
    plugin_checks.CHECK: _plugins,
    plugin_checks.WRITERS: _cpuset_writers,
    plugin_checks.MEMORY_MANAGER: _memory_manager,
    "device plugins": _device_plugins,
    "starter": _starter,
    "podresources": _podresources,
    "container runtime": _container_runtime,
    "checkpoint": _checkpoint,
    "pools": _pools,
    "containers": _containers,
    "owners": _owners,
    cpu_checks.AFFINITY: _affinity,
}
