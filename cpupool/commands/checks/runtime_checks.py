"""The checks of `cpupool doctor` for the container runtime: pure judgements of facts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from cpupool.commands.checks.findings import Row, Verdict
from cpupool.commands.checks.node_checks import SILENT_S
from cpupool.core.cgroups import Writer
from cpupool.core.cpu_manager import Misfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cpupool.manager.report import NodeStatus

_NRI_SWITCHES: Final = {
    "containerd": "set disable = false and disable_connections = false under"
    " [plugins.'io.containerd.nri.v1.nri'] in its config.toml (before 1.7 there is no such NRI)",
    "cri-o": "set enable_nri = true under [crio.nri] in its crio.conf",
}
_OTHER_NRI_SWITCH: Final = "switch NRI on in the runtime's configuration"
_UPDATES: Final = (
    "Update the agent while no pod ends slowly. A new agent waits for pods that are being deleted,"
    " but cannot see a container that the kubelet ends after a failed probe or in an eviction:"
    " containerd then starts no pod until that container has ended (Rolling updates in"
    " docs/user/operations.md)"
)
_VALIDATORS: Final = (
    ("plugins", "io.containerd.nri.v1.nri", "default_validator", "enable"),
    ("crio", "nri", "default_validator", "nri_enable_default_validator"),
)
"""The settings of containerd and of CRI-O that switch the validator of NRI plugins on."""


RESIZES: Final = "resizes"
_GATE: Final = "InPlacePodVerticalScaling"
_RESIZES_SINCE: Final = (1, 33)
"""The version of the first kubelet that resizes pods in place without being told to."""
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})\b")


def nri(runtime: str, status: tuple[NodeStatus, float] | None, *, offered: bool) -> Row:
    """Check that containers can have their CPUs before their first instruction.

    Args:
        runtime: the container runtime's name for itself; empty where it does not answer.
        status: the agent's status, and its age in seconds; None for none.
        offered: whether the runtime has a socket for NRI plugins.
    """
    seen, age_s = status or (None, 0.0)
    if offered and seen and seen.nri and age_s <= SILENT_S:
        fact = f"nri: {seen.nri}; containers that start until then get their CPUs after their start"
        return Row("container runtime", Verdict.WARNING, fact, f"wait until then. {_UPDATES}")
    if offered:
        fact = "the runtime takes NRI plugins: containers start on their CPUs (enforcement nri)"
        return Row("container runtime", Verdict.OK, fact, _UPDATES)
    return Row(
        "container runtime",
        Verdict.WARNING,
        "the runtime has no socket for NRI plugins: containers get their CPUs a moment after their"
        " start (enforcement cgroup)",
        f"{_NRI_SWITCHES.get(runtime, _OTHER_NRI_SWITCH)}, and mount /run/nri into the agent's pod",
    )


def agent_away(configurations: Sequence[Mapping[str, Any]]) -> Row:
    """Check whether the container runtime can wait for the agent.

    While the agent is away, a runtime without a validator of NRI plugins creates containers that
    request CPUs of their own on the CPUs of all others.

    Args:
        configurations: the runtime's configuration files; none where they cannot be seen.
    """
    if not configurations:
        fact = "the container runtime's configuration cannot be seen from here"
        return Row("agent away", Verdict.UNSEEN, fact, "run this on the node, as root")
    if any(_value(found, path) is True for found in configurations for path in _VALIDATORS):
        fact = "the container runtime creates no container of a pod that requires cpupool"
        return Row("agent away", Verdict.OK, fact)
    return Row(
        "agent away",
        Verdict.WARNING,
        "while the agent is away, a pod that requests CPUs of its own starts where all others run",
        "switch on the runtime's default validator for NRI plugins, and `cpupool webhook"
        " --require-agent guaranteed`",
    )


def misfits(misfit: Misfit, writer: Writer) -> Row:
    """Check that a pod without its CPUs can be treated as the pool file says.

    Args:
        misfit: how to treat a pod that cannot have CPUs of its own.
        writer: the program that sets the CPUs of containers that start now.
    """
    if misfit is Misfit.SHARE or writer is Writer.NRI:
        fact = f"onMisfit {misfit.value} decides about a pod whose CPUs are not available"
        return Row("misfits", Verdict.OK, fact)
    return Row(
        "misfits",
        Verdict.WARNING,
        f"onMisfit {misfit.value} needs NRI, and new containers are set by {writer.value}: a pod"
        " whose CPUs are not available starts on the default pool",
        "connect NRI (row container runtime), or write onMisfit: share into the pool file",
    )


def resizes(
    policy: str, writer: Writer | None, gates: Mapping[str, bool], version: str | None
) -> Iterator[Row]:
    """Check that in-place resizes can change the CPUs of containers.

    Args:
        policy: the CPU manager policy, which follows resizes.
        writer: the program that sets the CPUs of containers that start now; None if it is not
            known.
        gates: the feature gates in the kubelet's configuration: name → whether it is on.
        version: the kubelet's version; None if no API server is named.
    """
    fine = True
    if writer not in {None, Writer.NRI}:
        fine = False
        yield Row(
            RESIZES,
            Verdict.WARNING,
            f"the policy {policy} hears of resizes by NRI, which is not connected: containers keep"
            " the CPUs with which they began",
            "connect NRI (row container runtime)",
        )
    if gates.get(_GATE) is False:
        fine = False
        fact = f"the kubelet's configuration switches {_GATE} off: it resizes no pod in place"
        yield Row(RESIZES, Verdict.WARNING, fact, f"remove featureGates.{_GATE}")
    found = _VERSION.match(version or "")
    if version is None:
        fine = False
        fact = "whether the kubelet can resize pods in place depends on its version"
        remedy = "name the API server with --kubeconfig, and the node with --node-name"
        yield Row(RESIZES, Verdict.UNSEEN, fact, remedy)
    elif found and (int(found[1]), int(found[2])) < _RESIZES_SINCE and not gates.get(_GATE):
        fine = False
        since = ".".join(map(str, _RESIZES_SINCE))
        fact = f"the kubelet is {version}, and resizes pods in place only from {since} on"
        yield Row(RESIZES, Verdict.WARNING, fact, f"upgrade it, or do without the policy {policy}")
    if fine:
        fact = f"the policy {policy} changes the CPUs of a container when its pod is resized"
        yield Row(RESIZES, Verdict.OK, fact)


def _value(found: object, path: Iterable[str]) -> object:
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
