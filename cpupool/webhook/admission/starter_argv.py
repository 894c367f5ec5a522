"""The process starter's command line, as the webhook writes it into a container's `args`.

    process-starter OPTION... -- COMMAND ARG...
    process-starter OPTION... --process N:WHERE:CPUS:WORDS COMMAND ARG... [--process ...]

OPTION is `--exclusive VARIABLE` for each exclusive pool of the container and `--shared POOL` for
each shared pool, for which the starter waits, or `--supervise any|last`: the starter stays PID 1.
N numbers the processes from 0. WHERE is the variable of an exclusive pool, from which the process
gets the next CPUS, or `shared` or `all` (and CPUS 0). WORDS is the number of words that follow:
with a count no word needs quotes, and no word looks like an option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cpupool.core.names import pool_variable
from cpupool.core.pools import PoolKind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cpupool.webhook.admission.annotation import ContainerProcesses, ProcessSpec

_EXCLUSIVE: Final = "--exclusive"
_SHARED: Final = "--shared"
_SUPERVISE: Final = "--supervise"
_PROCESS: Final = "--process"
_COMMAND: Final = "--"


def for_command(pools: Collection[str], words: Sequence[str]) -> list[str]:
    """Return the arguments that start one command.

    Args:
        pools: the pools that the container requests.
        words: the command and its arguments from the pod; the kubelet still expands `$(NAME)`.
    """
    return [*_wait_for(pools), _COMMAND, *words]


def for_processes(pools: Collection[str], entry: ContainerProcesses) -> list[str]:
    """Return the arguments that start the processes of an annotation; words are not expanded."""
    supervise = [_SUPERVISE, entry.supervise.value] if entry.supervise else []
    arguments = [*_wait_for(pools), *supervise]
    for number, process in enumerate(entry.processes):
        words = [escaped(word) for word in (process.process, *process.args)]
        arguments += [_PROCESS, f"{number}:{_where(process)}:{len(words)}", *words]
    return arguments


def command_in(arguments: Sequence[str]) -> list[str] | None:
    """Return the words of the command in arguments from `for_command`; None for any others."""
    place = 0
    while arguments[place : place + 1] in ([_EXCLUSIVE], [_SHARED]):
        place += 2
    if arguments[place : place + 1] != [_COMMAND]:
        return None
    return list(arguments[place + 1 :]) or None


def escaped(word: str) -> str:
    """Double each `$`: the kubelet changes `$$` back to `$` when it expands `$(NAME)`.

    Source: kubernetes third_party/forked/golang/expansion/expand.go.
    """
    return word.replace("$", "$$")


def _where(process: ProcessSpec) -> str:
    kind = PoolKind.of_name(process.pool)
    if kind is PoolKind.EXCLUSIVE:
        return f"{pool_variable(process.pool)}:{process.cpus}"
    return "shared:0" if kind is PoolKind.SHARED else "all:0"


def _wait_for(pools: Collection[str]) -> list[str]:
    options = []
    for pool in sorted(pools):
        kind = PoolKind.of_name(pool)
        if kind is PoolKind.EXCLUSIVE:
            options += [_EXCLUSIVE, pool_variable(pool)]
        elif kind is PoolKind.SHARED:
            options += [_SHARED, str(pool)]
    return options
