"""A field of an object's body, with the way to it, so that an error can name both."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeGuard

from cpupool.core.errors import ManifestError

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*", re.ASCII)


@dataclass(slots=True)
class Field:
    """A value somewhere in a body; reading it as something raises where it is something else.

    No code changes one. It is not frozen, because a pod is three hundred of them, seven times in
    its life, and a frozen one takes twice as long to make.

    Attributes:
        source: the object, for messages.
        path: the way from there; empty for the object itself.
        value: the value there; None where there is none.
    """

    source: str
    path: str
    value: object

    @classmethod
    def of(cls, body: object) -> Field:
        """Take a pod's body."""
        metadata = body.get("metadata") if isinstance(body, Mapping) else None
        given = metadata if isinstance(metadata, Mapping) else {}
        parts = (given.get("namespace", "default"), given.get("name"))
        name = "/".join(part if _is_name(part) else "(no name)" for part in parts)
        return cls(f"pod {name}", "", body)

    def error(self, what: str) -> ManifestError:
        """Return the error for this field."""
        return ManifestError(self.source, self.path, what)

    def __getitem__(self, key: str) -> Field:
        path = f"{self.path}.{key}" if self.path else key
        # Most fields that are read are of a dict, or missing.
        value = self.value.get(key) if type(self.value) is dict else self._mapping().get(key)
        return Field(self.source, path, value)

    def unix_s(self) -> float | None:
        """Return a timestamp of the API server as Unix time; None where there is none."""
        try:
            found = datetime.fromisoformat(self.text(""))
        except ValueError:
            return None
        return found.timestamp() if found.tzinfo else None

    def entries(self) -> Iterator[tuple[str, Field]]:
        """Return the entries of a mapping."""
        begin = f"{self.path}." if self.path else ""
        for key, value in self._mapping().items():
            yield str(key), Field(self.source, f"{begin}{key}", value)

    def texts(self) -> dict[str, str]:
        """Return the entries that are texts: others are no labels and no annotations."""
        return {str(k): value for k, value in self._mapping().items() if isinstance(value, str)}

    def __iter__(self) -> Iterator[Field]:
        if self.value is None:
            return
        if not isinstance(self.value, Sequence) or isinstance(self.value, str):
            raise self.error(f"{shown(self.value)} is not a list")
        for place, value in enumerate(self.value):
            yield Field(self.source, f"{self.path}[{place}]", value)

    def text(self, default: str | None = None) -> str:
        """Return a text; the default if the field is missing."""
        if self.value is None and default is not None:
            return default
        if self.value is None or (self.value == "" and default is None):
            raise self.error("is missing")
        if not isinstance(self.value, str):
            raise self.error(f"{shown(self.value)} is not a text; quote it")
        return self.value

    def name(self, default: str | None = None) -> str:
        """Return a text that can be a name or an id."""
        # Names and ids go into paths and logs. Kubernetes' own rules are stricter.
        text = self.text(default)
        if not _is_name(text):
            raise self.error(f"{shown(text)} is not a name; use letters, digits, '-' and '.'")
        return text

    def _mapping(self) -> Mapping[str, object]:
        if self.value is None:
            return {}
        if not isinstance(self.value, Mapping):
            raise self.error(f"{shown(self.value)} is not a mapping")
        return self.value


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def shown(value: object) -> str:
    """Write a value for a message."""
    # Not all of it: a body can hold anything, and all of that may not fit into memory.
    try:
        text = repr(value[:60]) if isinstance(value, str) else reprlib.repr(value)
    except ValueError:  # an integer of too many digits
        text = f"this {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
