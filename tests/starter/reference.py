"""What the process starter decides, written for reading: the C program must agree with it.

Only the deciding: whether the arguments and the environment are good, which CPUs are waited for,
and what is started on which ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LIST = re.compile(r"(\d+(-\d+)?(,\d+(-\d+)?)*)?\n?", re.ASCII)
_SPEC = re.compile(r"(\d+):(?:(shared|all):0+|([^:]+):(\d+)):(\d+)", re.ASCII)
_TIMEOUT = re.compile(r"\d+", re.ASCII)


class RefusedError(Exception):
    """The starter would exit with 125 before it waits."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process: where it may run, and its words."""

    cpus: CPUSet
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is waited for and then started, in this order.

    Attributes:
        expected: None where the CPUs of a shared pool cannot be known.
        processes: of which the last takes the starter's place.
        supervise: "any" or "last" where it does not.
    """

    expected: CPUSet | None
    processes: tuple[Process, ...]
    supervise: str | None


@dataclass(frozen=True, slots=True)
class _Spec:
    where: str
    taken: int
    argv: tuple[str, ...]


def plan(
    argv: Sequence[str], environment: Mapping[str, str], pools: Mapping[str, str], online: CPUSet
) -> Plan:
    """Decide what the starter does.

    Args:
        argv: its arguments, without its name.
        environment: its variables.
        pools: shared pool → the text of its file.
        online: the machine's CPUs.

    Raises:
        RefusedError: it does nothing.
    """
    options, rest = _options(list(argv))
    variables = [value for name, value in options if name == "--exclusive"]
    exclusive = {name: _variable(name, environment) for name in variables}
    specs = list(_specs(rest, variables or ["EXCLUSIVE_CPUS"]))
    timeout = environment.get("CPUPOOL_START_TIMEOUT", "30")
    if not _TIMEOUT.fullmatch(timeout) or int(timeout) > 1_000_000:
        raise RefusedError(timeout)
    if not variables and "EXCLUSIVE_CPUS" in environment:
        exclusive = {"EXCLUSIVE_CPUS": _variable("EXCLUSIVE_CPUS", environment)}
    files = [value for name, value in options if name == "--shared"]
    variable = _variable("SHARED_CPUS", environment) if "SHARED_CPUS" in environment else None
    has_shared = bool(files) or variable is not None
    if not exclusive and not has_shared:
        raise RefusedError("no CPUs")
    dealt = list(_dealt(specs, exclusive))
    if any(spec.where == "shared" for spec in specs) and not has_shared:
        raise RefusedError("no shared CPUs")
    supervise = next((value for name, value in reversed(options) if name == "--supervise"), None)
    shared = _shared(files, pools, variable)
    if shared is None:
        return Plan(None, (), supervise)
    expected = (CPUSet.union(exclusive.values()) | shared) & online
    choices = {**exclusive, "shared": shared, "all": expected}
    processes = (
        Process(own & expected or choices[spec.where] & expected or expected, spec.argv)
        for spec, own in ((spec, own or choices[spec.where]) for spec, own in dealt)
    )
    return Plan(expected, tuple(processes), supervise)


def _options(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    options = []
    while len(words) > 1 and words[0] in {"--exclusive", "--shared", "--supervise"}:
        name, value, *words = words
        if name == "--supervise" and value not in {"any", "last"}:
            raise RefusedError(value)
        if name == "--shared" and (not value or "/" in value or len(value.encode()) > 255):
            raise RefusedError(value)
        options.append((name, value))
    return options, words


def _specs(words: list[str], variables: Sequence[str]) -> Iterator[_Spec]:
    if len(words) > 1 and words[0] == "--":
        yield _Spec("all", 0, tuple(words[1:]))
        return
    if not words:
        raise RefusedError("no command")
    number = 0
    while words:
        match = _SPEC.fullmatch(words[1]) if words[0] == "--process" and len(words) > 1 else None
        if match is None:
            raise RefusedError(words[0])
        taken, count = int(match[4] or 0), int(match[5])
        if int(match[1]) != number or not 0 < count <= len(words) - 2:
            raise RefusedError(words[1])
        if match[2] is None and (taken == 0 or match[3] not in variables):
            raise RefusedError(words[1])
        yield _Spec(match[2] or match[3], taken, tuple(words[2 : 2 + count]))
        words = words[2 + count :]
        number += 1


def _variable(name: str, environment: Mapping[str, str]) -> CPUSet:
    cpus = _list(environment[name]) if name in environment else None
    if cpus is None:
        raise RefusedError(name)
    return cpus


def _shared(
    names: Sequence[str], pools: Mapping[str, str], variable: CPUSet | None
) -> CPUSet | None:
    found = [_list(pools[name]) if name in pools else variable for name in names]
    if not names:
        return variable or CPUSet()
    return None if None in found else CPUSet.union(one for one in found if one is not None)


def _list(text: str) -> CPUSet | None:
    try:
        return CPUSet.parse(text) if _LIST.fullmatch(text) else None
    except CPUSetParseError:
        return None


def _dealt(
    specs: Sequence[_Spec], exclusive: Mapping[str, CPUSet]
) -> Iterator[tuple[_Spec, CPUSet]]:
    """Give each process the next CPUs of its variable that no other has; none to all others."""
    gone = CPUSet()
    for spec in specs:
        left = list(exclusive.get(spec.where, CPUSet()) - gone) if spec.taken else []
        if len(left) < spec.taken:
            raise RefusedError("too few exclusive CPUs")
        own = CPUSet(left[: spec.taken])
        gone |= own
        yield spec, own
