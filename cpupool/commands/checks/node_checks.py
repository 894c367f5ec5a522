"""The checks of `cpupool doctor` of a node: the agent, its rights, its pool file, the kubelet.

The functions turn facts into rows, and read nothing themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.commands.checks.findings import Row, Verdict, listed, problems, refused
from cpupool.config.cpu_manager import Unusable
from cpupool.config.pool_rules import suits_static_kubelet
from cpupool.core.assignments import Placement
from cpupool.core.cpu_manager import CPU_MANAGER, NONE, STATIC
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.host.cgroupfs import CgroupVersion
from cpupool.manager.readiness import POOL_FILE
from cpupool.policies.built_in import kind
from cpupool.wire import cpu_manager_state
from cpupool.wire.node_topology import PLURAL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cpupool.config.pool_file import PoolFile
    from cpupool.core.pools import NodePools
    from cpupool.manager.report import NodeStatus

POLICIES: Final = "policies"
KUBELET_CPUS: Final = "kubelet's CPUs"
SILENT_S: Final = 120.0
"""The agent touches its status with every sweep, which is twice in so long at the least."""
_ASK: Final = "run this in the agent's container, or give the address of its pod with --agent"
_SEE_LOG: Final = "look at its log for why that does not come"
_GRANT: Final = (
    "apply the agent's ClusterRole, its Role and their bindings: list and watch pods, nodes and the"
    " one ConfigMap, create events"
)
_RESTART: Final = (
    "drain the node, stop the kubelet, delete cpu_manager_state in its folder, start it"
)
_RESTARTED: Final = _RESTART.replace("delete", "{}, delete")
_NO_STATIC: Final = _RESTARTED.format("set cpuManagerPolicy: none")


def agent(found: tuple[NodeStatus, float] | None, readiness: str | None) -> Iterator[Row]:
    """Check that the agent runs and does its work.

    Args:
        found: its status, and the age of that in seconds; None without a file.
        readiness: its answer to /readyz, a line per condition; None without one.
    """
    if found is None:
        fact = "it has not run here since the node was started"
        yield Row("agent", Verdict.PROBLEM, fact, "install it, or look at its pod: kubectl logs")
        return
    status, age_s = found
    failing = [line for line in (readiness or "").splitlines() if ": failing: " in line]
    if age_s > SILENT_S:
        fact = f"its last word is {age_s:.0f} s old"
        yield Row("agent", Verdict.PROBLEM, fact, "look at its pod: kubectl describe, kubectl logs")
    for line in failing:
        fact, _, remedy = line.replace(": failing: ", ": ", 1).partition("; ")
        yield Row("agent", Verdict.PROBLEM, fact, remedy or _SEE_LOG)
    if status.waiting_for and not failing:
        fact = f"it waits for {status.waiting_for} and touches no container before"
        without_pools = status.waiting_for == POOL_FILE
        verdict = Verdict.WARNING if without_pools else Verdict.PROBLEM
        yield Row("agent", verdict, fact, _SEE_LOG)
    elif age_s <= SILENT_S and not failing:
        said = ", and says that it is ready" if readiness else ""
        yield Row("agent", Verdict.OK, f"it wrote its status {max(age_s, 0):.0f} s ago{said}")


def rights(found: tuple[NodeStatus, float] | None, metrics: str | None) -> Row:
    """Check the agent's rights in the API server, by the refusals that the agent has met.

    Args:
        found: the agent's status, and its age in seconds; None without a file.
        metrics: its answer to /metrics; None without one.
    """
    # The object of the node's topology has a check of its own.
    missing = sorted(refused(metrics) - {PLURAL})
    waits_for_pods = found is not None and "pods" in found[0].waiting_for
    if missing:
        fact = f"the API server has refused the agent: {', '.join(missing)}"
        verdict = Verdict.PROBLEM if waits_for_pods else Verdict.WARNING
        return Row("rights", verdict, fact, _GRANT)
    if waits_for_pods:
        fact = "the agent has no list of the node's pods yet"
        return Row("rights", Verdict.WARNING, fact, f"if its log says Forbidden: {_GRANT}")
    if metrics is None:
        return Row("rights", Verdict.UNSEEN, "the agent gives no answer", _ASK)
    return Row("rights", Verdict.OK, "the API server lets the agent watch pods and its node")


def cgroups(version: CgroupVersion, looked_for: Iterable[str], there: Collection[str]) -> Row:
    """Check the cgroups of pods.

    Args:
        version: which one has the cpuset controller.
        looked_for: the places where the cgroup of all pods can be.
        there: those that exist.
    """
    if not there:
        return Row(
            "cgroups",
            Verdict.PROBLEM,
            f"there is no cgroup of pods; looked for {', '.join(looked_for)}",
            "start the kubelet, or give its --cgroup-root to cpupool",
        )
    drivers = sorted({"systemd" if place.endswith(".slice") else "cgroupfs" for place in there})
    fact = f"version {version.value}, driver {' and '.join(drivers)} ({', '.join(there)})"
    if len(drivers) > 1:
        remedy = "the kubelet's driver was changed: reboot the node to remove the old cgroups"
        return Row("cgroups", Verdict.WARNING, fact, remedy)
    if version is CgroupVersion.V1:
        remedy = "move to version 2; until then a kubelet from 1.35 on needs failCgroupV1: false"
        return Row("cgroups", Verdict.WARNING, fact, remedy)
    return Row("cgroups", Verdict.OK, fact)


def kubelet_cpus(counted: int | None, online: CPUSet, configured: str | None) -> Iterator[Row]:
    """Check that the kubelet counts the CPUs that are online: it counts them when it starts.

    Source: KEP-3953 (node resource hot plug).

    Args:
        counted: the CPUs in the capacity of the Node object; None where that is not known.
        online: the CPUs that are online.
        configured: the policy of the kubelet's CPU manager; None where that cannot be seen.
    """
    if counted is None:
        return
    if counted == len(online):
        fact = f"it counts the {counted} CPUs that are online"
        yield Row(KUBELET_CPUS, Verdict.OK, fact)
        return
    effect = (
        "pods get no place on the others"
        if counted < len(online)
        else "pods are sent that these cannot run"
    )
    fact = f"the kubelet counts {counted} CPUs, and {len(online)} are online: {effect}"
    restart = _RESTART if configured == STATIC else "restart the kubelet: pods run on meanwhile"
    yield Row(KUBELET_CPUS, Verdict.WARNING, fact, restart)


def cpu_manager(
    state: bytes | None,
    configured: str | None,
    allocatable: CPUSet | None,
    pools: NodePools | None,
    kept: CPUSet,
) -> Iterator[Row]:
    """Check that the kubelet places no containers, or is meant to.

    Args:
        state: the file of its CPU manager; None where that cannot be seen.
        configured: as its configuration names it; None where that cannot be seen.
        allocatable: the CPUs that it says it gives out, none under the policy none; None where it
            was not asked.
        pools: the node's; None where they are not known.
        kept: the CPUs that it must not give out, where it may give out others.
    """
    kubelet_policy: str | None = None
    try:
        kubelet_policy = None if state is None else cpu_manager_state.parse(state).policy
    except RemoteProtocolError:
        fact = "the kubelet's cpu_manager_state is damaged: the next start of the kubelet fails"
        yield Row("CPU manager", Verdict.PROBLEM, fact, _RESTART)
    if kubelet_policy not in (None, NONE) and configured == NONE:
        fact = (
            f"the kubelet's configuration sets cpuManagerPolicy {NONE}, and its cpu_manager_state"
            f" is of {kubelet_policy!r:.40}: the next start of the kubelet fails"
        )
        yield Row("CPU manager", Verdict.PROBLEM, fact, _RESTART)
        if not allocatable:
            return
    yield _placing_kubelet(kubelet_policy, allocatable, pools, kept)


def _placing_kubelet(
    kubelet_policy: str | None, allocatable: CPUSet | None, pools: NodePools | None, kept: CPUSet
) -> Row:
    static = kubelet_policy == STATIC or bool(allocatable)
    if static and pools and suits_static_kubelet(pools):
        return _beside_kubelet(pools, kept & (allocatable or CPUSet()))
    if allocatable:
        fact = f"the kubelet's CPU manager is static: it gives out the CPUs {allocatable} itself"
        if pools and pools.cpu_manager.chooses:
            fact += f", and so does the policy {pools.cpu_manager.policy} of {CPU_MANAGER}"
        instead = kind(pools.cpu_manager).instead_of_kubelet if pools else ""
        remedy = f"{instead}; then {_NO_STATIC}" if instead else _NO_STATIC
        return Row("CPU manager", Verdict.PROBLEM, fact, remedy)
    if kubelet_policy not in (None, NONE):
        fact = (
            f"the kubelet's CPU manager is {kubelet_policy!r:.40} and writes the same cpusets as"
            " cpupool"
        )
        return Row("CPU manager", Verdict.PROBLEM, fact, _NO_STATIC)
    if kubelet_policy is None and allocatable is None:
        fact = "the kubelet's state cannot be seen from here"
        return Row("CPU manager", Verdict.UNSEEN, fact, "run this on the node, as root")
    return Row("CPU manager", Verdict.OK, "none, so only cpupool writes cpusets")


def _beside_kubelet(pools: NodePools, both: CPUSet) -> Row:
    chooses = pools.cpu_manager.chooses
    if both:
        whose = f"CPUs {both} that {CPU_MANAGER} reserves"
        if not chooses:
            whose = f"the shared pools' CPUs {both}"
        fact = f"the kubelet's CPU manager is static, and gives out {whose}"
        remedy = _RESTARTED.format("add them to its reservedSystemCPUs")
        return Row("CPU manager", Verdict.PROBLEM, fact, remedy)
    fact = "static: the kubelet gives out CPUs itself, and cpupool "
    if not chooses:
        return Row("CPU manager", Verdict.OK, f"{fact}adds shared ones to them")
    fact += "places the other containers; for a new pod the two may choose the same CPUs"
    return Row("CPU manager", Verdict.WARNING, fact, _NO_STATIC)


def policies(found: Mapping[str, object]) -> Iterator[Row]:
    """Say which policies packages bring, and which of them cannot be used; nothing of none.

    Args:
        found: the name of each → its class, or why it cannot be used.
    """
    for name, policy in found.items():
        if isinstance(policy, Unusable):
            yield Row(POLICIES, Verdict.WARNING, policy.what, policy.remedy)
        else:
            yield Row(POLICIES, Verdict.OK, f"a package brings the policy {name}")


def pool_file(
    file: PoolFile | None,
    in_force: NodePools | None,
    *,
    of: int,
    labels: Mapping[str, str] | None,
) -> Iterator[Row]:
    """Compare the node's pool file with the pools that the agent has in force.

    Args:
        file: the node's; None where it has none, or its file is not known.
        in_force: the pools that the agent has in force; None where they are unknown.
        of: the number of pool files that it was chosen from.
        labels: the node's, that chose it; None where they are unknown.
    """
    if file is None and not of:
        fact, remedy = "none is in sight", "name it, or the folder that it is in, with --config"
        yield Row("pool file", Verdict.UNSEEN, fact, remedy)
    elif file is None and labels is None:
        fact = f"there are {of}, and the node's labels choose one of them"
        yield Row("pool file", Verdict.UNSEEN, fact, "give the labels with --node-labels")
    elif file is None:
        fact = f"none of {of} is for a node with these labels, so it has no pools"
        yield Row("pool file", Verdict.WARNING, fact, "compare them with each file's nodeSelector")
    elif in_force not in (None, file.pools):
        fact = f"{file.name} says something else than the pools that the agent has in force"
        remedy = "the folder may lag by a minute or two; after that, look at the agent's log"
        yield Row("pool file", Verdict.WARNING, fact, remedy)
    else:
        fine = f"{file.name} {'is in force' if in_force else 'can be used'}"
        yield from problems("pool file", file.warnings, fine)


def containers(status: NodeStatus) -> Iterator[Row]:
    """Check that containers run where the agent wants them."""
    # cpupool moves no container to an empty set: it does not change that container.
    astray = [
        container for container in status.containers if container.wanted and not container.right
    ]
    confined = [container for container in status.containers if container.confined]
    if astray:
        named = listed(
            f"{container.name} runs on {container.found}, not on {container.wanted}"
            for container in astray
        )
        yield Row(
            "containers",
            Verdict.PROBLEM,
            f"{len(astray)} of {len(status.containers)} are on wrong CPUs: {named}",
            "read in the agent's log what the kernel refuses, or which program overwrites them",
        )
    if confined:
        named = listed(f"{container.name}: {container.reason}" for container in confined)
        yield Row(
            "containers",
            Verdict.WARNING,
            f"{len(confined)} of {len(status.containers)} are confined to the default pool:"
            f" {named}",
            "see docs/user/troubleshooting.md, A container is confined",
        )
    waiting = [
        container
        for container in status.containers
        if container.placement is Placement.KUBELET and container.reason
    ]
    if waiting:
        named = listed(f"{container.name}: {container.reason}" for container in waiting)
        yield Row(
            "containers",
            Verdict.WARNING,
            f"{len(waiting)} of {len(status.containers)} have no shared CPUs in addition to"
            f" the kubelet's: {named}",
            "look at the pod's events for what to do",
        )
    if not (astray or confined or waiting):
        fact = f"all {len(status.containers)} are where they belong"
        yield Row("containers", Verdict.OK, fact)


def device_plugins(*, listening: bool, serving: int, expected: int) -> Row:
    """Check the kubelet's folder of device plugins.

    Args:
        listening: whether the kubelet takes registrations.
        serving: how many of our plugins take calls.
        expected: how many the pools need.
    """
    if not listening:
        return Row(
            "device plugins",
            Verdict.PROBLEM,
            "no program listens on the kubelet's registration socket",
            "start the kubelet; in a container, mount its device-plugins folder",
        )
    fact = f"the kubelet listens, and {serving} of {expected} plugins"
    if serving < expected:
        remedy = "look at the agent's log: it offers nothing before it is ready"
        return Row("device plugins", Verdict.PROBLEM, fact, remedy)
    return Row("device plugins", Verdict.OK, fact)


def starter(*, can_run: bool) -> Row:
    """Check that containers have a process starter that they can run."""
    if can_run:
        return Row("starter", Verdict.OK, "containers that need the process starter have it")
    fact = "there is no process starter that can be run: containers that need it do not start"
    remedy = "run the agent from its image, and mount /var/lib/cpupool writable and without noexec"
    return Row("starter", Verdict.WARNING, fact, remedy)
