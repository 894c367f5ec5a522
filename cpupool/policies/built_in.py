"""The CPU manager policies that a pool file can choose, and the choice among them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cpupool.core import default_pool
from cpupool.core.cpu_manager import CPU_MANAGER, DYNAMIC, NONE, POLICY, STATIC
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, Problem, said
from cpupool.policies.base import CPUManagerPolicy
from cpupool.policies.dynamic.policy import DynamicPolicy
from cpupool.policies.koordinator.policy import KOORDINATOR, KoordinatorPolicy
from cpupool.policies.none.policy import NonePolicy
from cpupool.policies.qrm.policy import QRM, QRMPolicy
from cpupool.policies.static.policy import StaticPolicy
from cpupool.policies.view import NodeView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.cpu_manager import CPUManager
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

BUILT_IN: Final[Mapping[str, type[CPUManagerPolicy]]] = {
    NONE: NonePolicy,
    STATIC: StaticPolicy,
    DYNAMIC: DynamicPolicy,
    KOORDINATOR: KoordinatorPolicy,
    QRM: QRMPolicy,
}
CHOOSING: Final = tuple(
    name for name, policy in BUILT_IN.items() if name != NONE and not policy.asks_plugins
)
"""The policies that choose CPUs themselves."""
_T = TypeVar("_T")
_PATH: Final = f"{CPU_MANAGER}.{POLICY}"


def named(manager: CPUManager) -> type[CPUManagerPolicy] | None:
    """Return the policy of a pool file; None where it is not built in, and not installed here."""
    installed = manager.installed
    if installed is not None and issubclass(installed, CPUManagerPolicy):
        return installed
    return BUILT_IN.get(manager.policy)


def kind(manager: CPUManager) -> type[CPUManagerPolicy]:
    """Return the class of a pool file's policy; the one with the defaults if it is not known."""
    return named(manager) or CPUManagerPolicy


def may_own(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Return whether the words on a pod may give it CPUs of its own by any policy."""
    return any(policy.may_own(labels, annotations) for policy in BUILT_IN.values())


def made(pools: NodePools, machine: CPUTopology) -> CPUManagerPolicy:
    """Return the policy of a pool file on a machine.

    Raises:
        ConfigError: the policy does not allow this configuration on this machine, there is no
            policy of this name, or a package's policy has failed.
    """
    manager = pools.cpu_manager
    policy = named(manager)
    if policy is None:
        what = f"there is no CPU manager policy {manager.policy!r}"
        raise ConfigError([Problem(what, f"use {', '.join(BUILT_IN)}", path=_PATH)])
    return _answer(manager, policy, partial(policy.of_pools, pools, machine))


def _answer(manager: CPUManager, kind: type[_T], asked: Callable[[], _T]) -> _T:
    """Return the answer of a policy.

    Raises:
        ConfigError: a package's policy has failed, or has answered with another type.
    """
    if manager.installed is None:
        return asked()
    try:
        answer = asked()
        if isinstance(answer, kind):
            return answer
        why = f"a {type(answer).__name__} is no {kind.__name__}"
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the code is not ours
        why = said(error)
    what = f"the policy {manager.policy} has failed: {why}"
    raise ConfigError([Problem(what, "correct the policy, or name another", path=_PATH)])


def assignable(pools: NodePools, machine: CPUTopology) -> CPUSet | None:
    """Return the online CPUs that containers can get of their own while no container runs.

    None where the policy gives out none, or is not known here.

    Raises:
        ConfigError: the policy does not allow this configuration on this machine, or a package's
            policy has failed.
    """
    if named(pools.cpu_manager) is None or not pools.cpu_manager.chooses:
        return None
    view = NodeView(machine, pools, default_pool.declared(pools, machine))
    return _answer(pools.cpu_manager, CPUSet, partial(given, made(pools, machine), view))


def given(policy: CPUManagerPolicy, view: NodeView) -> CPUSet:
    """Return the CPUs that containers can get of their own; with `full-pcpus-only` whole cores."""
    cpus = policy.available(view)
    if not view.pools.cpu_manager.options.full_pcpus_only:
        return cpus
    return cpus - view.topology.with_running_siblings(view.cpus & view.topology.online - cpus)
