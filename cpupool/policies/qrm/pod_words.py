"""Katalyst's words: an annotation that is misspelt would place a pod as one without it.

Source: kubewharf/katalyst-api, pkg/consts/qos.go.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cpupool.core.errors import Problem, Severity
from cpupool.core.suggestions import hint, nearest
from cpupool.core.visible import shown
from cpupool.policies.qrm.katalyst import (
    DOMAIN,
    ENHANCEMENTS,
    MOST_KEYS,
    NAMES,
    RECLAIMED_MEMORY,
    RECLAIMED_MILLI,
    unknown_level,
    unknown_words,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from cpupool.policies.qrm.katalyst import Unknown


def problems(
    annotations: Mapping[str, str], requested: Mapping[str, Collection[str]]
) -> Iterator[Problem]:
    """Find words that Katalyst does not know, and a resource that no node of cpupool has.

    Args:
        annotations: the pod's.
        requested: the place of each container → the resources that it requests, or limits.
    """
    for found in (*unknown_level(annotations), *unknown_words(annotations, ENHANCEMENTS)):
        yield _unknown(found)
    yield from _misspelt(annotations)
    for path, resources in requested.items():
        if RECLAIMED_MEMORY in resources:
            yield Problem(
                "cpupool offers no such resource: without another program the pod stays pending",
                f"request {RECLAIMED_MILLI} alone, and limit memory",
                Severity.WARNING,
                f"{path}.resources.limits[{RECLAIMED_MEMORY}]",
            )


def _misspelt(annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Find annotations that have the letters of Katalyst's, and not their names.

    Katalyst has others beside those that cpupool reads, so that a likeness alone is no mistake.
    """
    for name in annotations:
        meant = _BY_LETTERS.get(_letters(name)) if name.startswith(DOMAIN) else None
        if meant not in (None, name):
            what, remedy = "Katalyst knows no such annotation", f"did you mean {meant}?"
            yield Problem(what, remedy, path=f"metadata.annotations[{shown(name)}]")


def _letters(name: str) -> str:
    return _BETWEEN_WORDS.sub("", name.removeprefix(DOMAIN)).lower().rstrip("s")


_BETWEEN_WORDS: Final = re.compile("[-_.]")
_BY_LETTERS: Final = {_letters(name): name for name in NAMES}


def _unknown(found: Unknown) -> Problem:
    path = f"metadata.annotations[{found.annotation}]"
    if not found.known:
        what = f"this is no JSON object of at most {MOST_KEYS} texts"
        return Problem(what, 'write one, as {"numa_binding": "true"}', path=path)
    if found.is_key:
        # Katalyst may have new keys; a likeness is a mistake.
        near = nearest(found.key, found.known)
        severity = Severity.ERROR if near else Severity.WARNING
        what = f"unknown key {shown(found.key)}"
        return Problem(what, hint(found.key, found.known), severity, path)
    path = f"{path}.{found.key}" if found.key else path
    return Problem(f"unknown value {shown(found.word)}", hint(found.word, found.known), path=path)
