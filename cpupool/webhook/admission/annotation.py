"""The annotation `<domain>/cpus`: which processes a container starts, and on which CPUs each.

CPU-Pooler's format: a JSON list of `{container, processes: [{process, args, pool, cpus}]}`.
cpupool adds the key `supervise` next to `processes`. CPU-Pooler ignores keys that it does not know,
and accepts keys in upper and lower case, as Go's encoding/json does.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import Problem, Severity, errors_in
from cpupool.core.visible import shown
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

MAX_ARGUMENT_BYTES: Final = 131_071
"""The kernel's MAX_ARG_STRLEN without the NUL at the end (include/uapi/linux/binfmts.h)."""

MAX_ANNOTATIONS_BYTES: Final = 256 * 1024
"""Keys and values of all annotations together (k8s.io/apimachinery/pkg/api/validation)."""

_CONTAINER: Final = "container"
_PROCESSES: Final = "processes"
_SUPERVISE: Final = "supervise"
_PROCESS: Final = "process"
_ARGS: Final = "args"
_POOL: Final = "pool"
_CPUS: Final = "cpus"


class Supervision(Enum):
    """When a starter that stays PID 1 ends: with any of its processes, or with the last."""

    ANY = "any"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process.

    Attributes:
        process: the program, as a path or a name for `PATH`.
        args: its arguments, without its name.
        pool: the pool that it runs in.
        cpus: how many CPUs of an exclusive pool it gets, or milli-CPUs of a shared pool.
    """

    process: str
    args: tuple[str, ...]
    pool: str
    cpus: int


@dataclass(frozen=True, slots=True)
class ContainerProcesses:
    """The processes of one container, in the order of their start.

    Attributes:
        container: its name.
        processes: at least one.
        supervise: when the starter, which stays PID 1, ends; None where the last process replaces
            the starter.
        path: the place of the entry, for messages.
    """

    container: str
    processes: tuple[ProcessSpec, ...]
    supervise: Supervision | None = None
    path: str = field(default="", compare=False)


def parse(text: str, path: str, problems: list[Problem]) -> tuple[ContainerProcesses, ...]:
    """Read the annotation.

    Args:
        text: its value.
        path: its place, as `metadata.annotations[nokia.k8s.io/cpus]`.
        problems: receives everything that is wrong with it; unknown keys are warnings.

    Returns:
        The entries without an error.
    """
    reader = _Reader(problems)
    try:
        document = json_text.load(text)
    except JSONRefused as error:
        reader.refuse(path, f"this is not JSON: {error}", "correct it")
    else:
        return tuple(reader.containers(document, path))
    return ()


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of JSON values that records each value of a wrong type."""

    problems: list[Problem]

    def refuse(self, path: str, what: str, remedy: str) -> None:
        self.problems.append(Problem(what, remedy, path=path))

    def containers(self, value: object, path: str) -> Iterator[ContainerProcesses]:
        entries = self._list(value, path)
        if entries == []:
            self.refuse(path, "it names no container", "name one, or remove the annotation")
        places: dict[str, str] = {}
        for place, entry in enumerate(entries or ()):
            found = self._container(entry, f"{path}[{place}]")
            if found is None:
                continue
            if first := places.get(found.container):
                what = f"container {shown(found.container)} stands here twice, first at {first}"
                self.refuse(found.path, what, "list its processes in one entry")
                continue
            places[found.container] = found.path
            yield found

    def _container(self, value: object, path: str) -> ContainerProcesses | None:
        before = len(self.problems)
        fields = self._fields(value, path, (_CONTAINER, _PROCESSES, _SUPERVISE))
        if fields is None:
            return None
        name = self._word(fields.get(_CONTAINER), f"{path}.{_CONTAINER}")
        where = f"{path}.{_PROCESSES}"
        listed = self._list(fields.get(_PROCESSES), where)
        if listed == []:
            self.refuse(where, "there is no process", "list at least one")
        found = [
            self._process(process, f"{where}[{place}]")
            for place, process in enumerate(listed or ())
        ]
        supervise = self._supervision(fields.get(_SUPERVISE), f"{path}.{_SUPERVISE}")
        if errors_in(self.problems[before:]):
            return None
        return ContainerProcesses(name, tuple(filter(None, found)), supervise, path)

    def _process(self, value: object, path: str) -> ProcessSpec | None:
        fields = self._fields(value, path, (_PROCESS, _ARGS, _POOL, _CPUS))
        if fields is None:
            return None
        args = self._list(fields.get(_ARGS), f"{path}.{_ARGS}") or ()
        return ProcessSpec(
            process=self._word(fields.get(_PROCESS), f"{path}.{_PROCESS}"),
            args=tuple(
                self._text(word, f"{path}.{_ARGS}[{place}]") for place, word in enumerate(args)
            ),
            pool=self._word(fields.get(_POOL), f"{path}.{_POOL}"),
            cpus=self._count(fields.get(_CPUS), f"{path}.{_CPUS}"),
        )

    def _fields(
        self, value: object, path: str, known: Collection[str]
    ) -> Mapping[str, object] | None:
        if not isinstance(value, dict):
            self.refuse(path, "this is not an object", f"write one with {', '.join(known)}")
            return None
        fields = {key: value[key] for key in known if key in value}
        for key in sorted(value.keys() - known):
            what, remedy = f"the key {shown(key)} has no meaning here", "remove it"
            if key.lower() in known and key.lower() not in fields:
                fields[key.lower()] = value[key]
                what, remedy = f"the key {shown(key)} is taken for {key.lower()}", "write that"
            elif near := difflib.get_close_matches(key.lower(), known, n=1):
                remedy = f"did you mean {near[0]}?"
            self.problems.append(Problem(what, remedy, Severity.WARNING, path))
        return fields

    def _list(self, value: object, path: str) -> list[object] | None:
        """Return a list, an empty list for null, or None for anything else."""
        if value is None:
            return []
        if isinstance(value, list):
            return value
        self.refuse(path, "this is not a list", "put it between [ and ]")
        return None

    def _word(self, value: object, path: str) -> str:
        if value is None or value == "":
            self.refuse(path, "this is missing", "add it")
            return ""
        return self._text(value, path)

    def _text(self, value: object, path: str) -> str:
        """Return a value that can be a process's argument, or "" for anything else."""
        if not isinstance(value, str):
            self.refuse(path, "this is not text", "put it between quotes")
            return ""
        if "\0" in value:
            self.refuse(path, "it holds a NUL character", "no argument can; remove it")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            self.refuse(path, "it holds half of a surrogate pair", "write the whole character")
            return ""
        if size > MAX_ARGUMENT_BYTES:
            what = f"it has {size} bytes, and the kernel takes arguments of {MAX_ARGUMENT_BYTES}"
            self.refuse(path, what, "shorten it, or pass a file")
        return value

    def _count(self, value: object, path: str) -> int:
        """Return a number of CPUs, or 0 for anything else; 2.0 is 2, as in JSON Schema."""
        if value is None:
            self.refuse(path, "this is missing", "add it")
            return 0
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63:
            return value
        self.refuse(path, "this is not a whole number above 0", "write one without quotes")
        return 0

    def _supervision(self, value: object, path: str) -> Supervision | None:
        if value is None:
            return None
        for known in Supervision:
            if value == known.value:
                return known
        self.refuse(path, "this is neither any nor last", "write one of them, or remove it")
        return None
