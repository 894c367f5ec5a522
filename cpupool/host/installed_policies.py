"""The CPU manager policies of installed packages, by the entry points of one group.

The agent looks for a package when a pool file first names a policy that is not built in, and
imports only the policy's module. A person who may install a package may run code in this process; a
pool file only names what is installed.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from cpupool.config.cpu_manager import Unusable
from cpupool.core.errors import said
from cpupool.core.suggestions import hint, nearest
from cpupool.policies.base import CPUManagerPolicy
from cpupool.policies.built_in import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint

    from cpupool.core.pools import NodePools

GROUP: Final = "cpupool.policies"
"""The group of entry points: the name is the policy's in a pool file, the value its class."""


@cache
def find_policy(name: str) -> type[CPUManagerPolicy] | Unusable:
    """Return the policy that a package provides by this name, or why it cannot be used."""
    provided = _provided()
    points = provided.get(name, {})
    if not points:
        return _unknown(name, provided)
    if len(points) > 1:
        packages = " and ".join(sorted(points))
        return Unusable(
            f"the packages {packages} each have a policy {name}", "remove all of them but one"
        )
    ((package, point),) = points.items()
    try:
        policy: type[CPUManagerPolicy] = point.load()
        wrong = _wrong(policy)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the module is not ours
        wrong = f"cannot be imported: {said(error)}"
    if not wrong:
        return policy
    return Unusable(
        f"the policy {name} of the package {package}, {point.value}, {wrong}",
        "correct the package, or install another version of it",
    )


def _wrong(policy: object) -> str:
    """Return why an object is no policy; empty if it is one."""
    if not (isinstance(policy, type) and issubclass(policy, CPUManagerPolicy)):
        return "does not derive from CPUManagerPolicy"
    if inspect.isabstract(policy):
        return f"has no method {' and '.join(sorted(policy.__abstractmethods__))}"
    for name in CPUManagerPolicy.__annotations__:
        kind = type(getattr(CPUManagerPolicy, name))
        if not isinstance(getattr(policy, name, None), kind):
            return f"has {name} that is no {kind.__name__}"
    return ""


def known(pools: NodePools) -> NodePools:
    """Return the pools that another process has named, with the class of their policy."""
    manager = pools.cpu_manager
    policy = None if manager.policy in BUILT_IN else find_policy(manager.policy)
    if policy is None or isinstance(policy, Unusable):
        return pools
    return replace(pools, cpu_manager=replace(manager, installed=policy))


def installed() -> Mapping[str, type[CPUManagerPolicy] | Unusable]:
    """Return every policy of a package by its name, or why it cannot be used."""
    return {name: shadowed(name) or find_policy(name) for name in sorted(_provided())}


def provides(name: str) -> bool:
    """Return whether a package provides a policy by this name, even one that cannot be used."""
    return name in _provided()


def shadowed(name: str) -> Unusable | None:
    """Return that a package has a policy of this name, which is built in; None if none has."""
    packages = _provided().get(name, {})
    if name not in BUILT_IN or not packages:
        return None
    return Unusable(
        f"the policy {name} of the package {' and '.join(sorted(packages))} is never used:"
        f" {name} is built in",
        "name it otherwise in the package",
    )


def _unknown(name: str, provided: Mapping[str, object]) -> Unusable:
    known = [*BUILT_IN, *sorted(provided.keys() - BUILT_IN.keys())]
    remedy = hint(name, known)
    if not nearest(name, known):
        remedy += ", or install the package of the policy here, too"
    return Unusable(f"unknown value {name[:63]!r}", remedy)


@cache
def _provided() -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return policy → package → entry point; of two copies of a package the first, as imported."""
    # The import takes longer than the start of a command allows.
    from importlib.metadata import distributions  # noqa: PLC0415

    found: dict[str, dict[str, EntryPoint]] = {}
    for package in distributions():
        # One damaged package hides no policy of another: `entry_points` fails for all of them.
        with suppress(Exception):
            for point in package.entry_points.select(group=GROUP):
                found.setdefault(point.name, {}).setdefault(package.name or point.module, point)
    return found
