"""`cpupool kubelet-config`: shows the kubelet settings that a pool file needs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cpupool.commands.shell import beside, door, pool_files
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import input_file, open_machine, read_file
from cpupool.commands.shell.options import (
    add_command,
    add_node_labels,
    add_resource_domain,
    add_setting,
    add_topology,
)
from cpupool.config import kubelet_config
from cpupool.config.kubelet_settings import KubeletNeeds
from cpupool.core import visible
from cpupool.core.cpu_manager import CPU_MANAGER, NONE, RESERVED, STATIC
from cpupool.core.cpuset import format_ids
from cpupool.core.errors import CPUPoolError, QuantityError, errors_in
from cpupool.core.names import Names
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.core.quantity import as_quantity
from cpupool.host.kubelet_file import KubeletConfigFile, KubeletFiles, is_kubelets
from cpupool.host.root import HostRoot
from cpupool.policies import built_in

if TYPE_CHECKING:
    from cpupool.commands.shell.options import Commands
    from cpupool.config.kubelet_settings import KubeletConfig
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

_EXAMPLES = """\
examples:
  cpupool kubelet-config poolconfig-dpdk.yaml
  cpupool kubelet-config poolconfig-dpdk.yaml --topology recorded.tar.gz --reserve 500m
  cpupool kubelet-config poolconfig-dpdk.yaml --check /var/lib/kubelet/config.yaml
  cpupool kubelet-config poolconfig-dpdk.yaml --check /etc/kubernetes/kubelet.conf \\
    --kubelet-config-dir /etc/kubernetes/kubelet.conf.d
  kubectl get --raw /api/v1/nodes/NODE/proxy/configz \\
    | cpupool kubelet-config poolconfig-dpdk.yaml --check -

The command prints a part of a KubeletConfiguration: merge it into the kubelet's own, then restart
the kubelet. --reserve is the cpu that the node's daemons and the kubelet usually need; the default
pool has that much less for pods. With a CPU manager policy in the pool file its reserved CPUs are
for the daemons, and the scheduler counts the CPUs that the policy can give to containers.

Exit code 0: it is printed, or the kubelet's configuration suits the pools; 1: it does not; 2: the
command line is wrong, or a file that it names cannot be used.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "kubelet-config",
        summary,
        "Prints the kubelet settings that the pools of a node need, or checks those that it has.",
        _EXAMPLES,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=input_file,
        help="the node's pool file, or a ConfigMap manifest",
    )
    parser.add_argument(
        "--check",
        metavar="FILE",
        type=input_file,
        help="compare with this kubelet configuration file, or - for one (or an answer of /configz)"
        " on standard input",
    )
    add_setting(parser, "kubelet-config-dir")
    parser.add_argument(
        "--reserve",
        metavar="CPU",
        type=_cpu,
        default=0,
        help="cpu of the default pool to keep for the node's own daemons, as 500m (default: 0)",
    )
    add_topology(parser, "the node's machine", "this")
    add_node_labels(parser)
    add_resource_domain(parser)
    beside.needs(parser, "--kubelet-config-dir", "--check")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Print the settings, or what is wrong with those in force.

    Returns:
        0 where nothing is wrong.

    Raises:
        UsageError: a file cannot be used, or there is less cpu than is to be kept.
    """
    topology = open_machine(arguments.topology)
    names = Names(arguments.resource_domain)
    _, file = pool_files.choose(arguments.file, arguments.node_labels, names, topology)
    needs = _needs(file.pools, topology, arguments.reserve)
    if needs.schedulable_milli < 0:
        raise UsageError(
            f"--reserve {as_quantity(needs.usual_milli)} is more than the"
            f" {len(needs.default)} CPUs of the default pool; reserve less"
        )
    if arguments.check is None:
        out.write(_settings(needs, visible.line(Path(file.name).name)))
        return 0
    return _check(needs, arguments.check, arguments.kubelet_config_dir, out)


def _needs(pools: NodePools, topology: CPUTopology, usual_milli: int) -> KubeletNeeds:
    assignable = built_in.assignable(pools, topology)
    if assignable is None:
        return KubeletNeeds.of(pools, topology, usual_milli)
    needs = KubeletNeeds.of(pools, topology, 0, assignable)
    reserved = needs.reserved
    if usual_milli > len(reserved) * MILLI_PER_CPU:
        raise UsageError(
            f"--reserve {as_quantity(usual_milli)} is more than the {len(reserved)} CPUs"
            f" ({reserved}) that {CPU_MANAGER} reserves; raise {CPU_MANAGER}.{RESERVED} in the pool"
            " file, or reserve less"
        )
    return needs


def _read(path: Path, folder: str) -> KubeletConfig | None:
    """Read a file, with the drop-ins and the flags of the kubelet that runs with it."""
    if not path.is_file():
        return kubelet_config.parse(str(path), read_file(path))
    host = HostRoot() if is_kubelets(path, HostRoot()) else None
    return KubeletConfigFile(KubeletFiles(path, folder), host=host).read()


def _check(needs: KubeletNeeds, path: Path, folder: str, out: TextIO) -> int:
    try:
        config = _read(path, folder)
    except CPUPoolError as error:
        raise UsageError(error) from error
    if config is None:
        raise UsageError(
            f"{path}: this file is empty; name the file that the kubelet's --config names"
        )
    problems = kubelet_config.check(config, needs)
    for problem in problems:
        door.tell(str(problem), out)
    if errors_in(problems):
        return 1
    door.tell(f"{path}: ok: {config.describe(needs)}", out)
    return 0


def _settings(needs: KubeletNeeds, name: str) -> str:
    if needs.static and not needs.chooses:
        return _static_settings(needs, name)
    amount, left = as_quantity(needs.reserved_milli), as_quantity(needs.schedulable_milli)
    usual = f", and {as_quantity(needs.usual_milli)} for daemons" if needs.usual_milli else ""
    also = ""
    given = "the default pool has for pods"
    if needs.chooses:
        usual = f", and the {len(needs.reserved)} that {CPU_MANAGER} reserves"
        if needs.system:
            usual = f", the {len(needs.reserved)} that {CPU_MANAGER} reserves,"
            usual += f"\n# and the {len(needs.system)} of system pods"
            also = (
                "\n# The scheduler counts the requests of system pods, too, although these use none"
                "\n# of this cpu."
            )
        given = "the CPU manager can give"
    listed = len(needs.reserved_cpus)
    instead = len(needs.online) - listed
    return f"""\
# For {name}: {len(needs.online)} CPUs online, {len(needs.default)} of them in the default pool.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration

# cpupool writes the cpuset of every container, and a static CPU manager writes the same cpusets. On
# a node that had one: drain it, stop the kubelet, delete cpu_manager_state in its folder, start it.
# With none the kubelet does not start if cpuManagerPolicyOptions has options: remove them.
cpuManagerPolicy: {NONE}

# The CPUs outside the default pool{usual}. The scheduler
# then counts {left} cpu for this node: what {given}.
# The kubelet also subtracts the cpu in kubeReserved, if any.{also}
systemReserved:
  cpu: "{amount}"

# Leave reservedSystemCPUs out if you can. If it is set, the kubelet reserves the number of its CPUs
# instead of the cpu in systemReserved and kubeReserved; it moves no daemon. For the same
# reservation it must list {listed} CPUs, so that the scheduler counts {instead}:
# reservedSystemCPUs: "{needs.reserved_cpus}"

{_topology_manager(needs)}
"""


def _static_settings(needs: KubeletNeeds, name: str) -> str:
    return f"""\
# For {name}: {len(needs.online)} CPUs online. With mixedCPUs and shared pools alone the
# kubelet gives containers CPUs of their own, and cpupool adds the shared CPUs to them.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration

cpuManagerPolicy: {STATIC}

# The CPUs of the shared pools, and those kept for daemons: the kubelet gives them to no container.
reservedSystemCPUs: "{needs.reserved_cpus}"

{_topology_manager(needs)}
"""


def _topology_manager(needs: KubeletNeeds) -> str:
    if not needs.spanning:
        return (
            "# topologyManagerPolicy may be any: no exclusive pool has CPUs of two NUMA nodes. With"
            " another\n# than none the kubelet also looks for a pod's other devices on that node."
        )
    pools = ", ".join(f"{name} on {format_ids(on)}" for name, on in needs.spanning.items())
    if needs.topology_manager_policy == NONE:
        return (
            f"# Pools lie on several NUMA nodes ({pools}), but of {needs.node_count} nodes the\n"
            "# kubelet can bring devices together only with the policy option"
            " max-allowable-numa-nodes.\n"
            f"topologyManagerPolicy: {NONE}"
        )
    return f"""\
# Pools lie on several NUMA nodes: {pools}. best-effort brings the CPUs of a container,
# and its other devices, together where it can; single-numa-node refuses the pod where it cannot.
# With the scope pod the same holds for all containers of a pod together.
topologyManagerPolicy: {needs.topology_manager_policy}
topologyManagerScope: container"""


def _cpu(text: str) -> int:
    try:
        return kubelet_config.milli_of(text)
    except QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
