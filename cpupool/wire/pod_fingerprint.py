"""The fingerprint of a set of pods, by which a scheduler knows which pods an agent has seen.

Source: k8stopologyawareschedwg/podfingerprint, podfingerprint.go.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from xxhash import xxh64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterable

_PREFIX: Final = "pfp0v001"


def fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """Return the fingerprint of pods, in any order.

    Args:
        pods: namespace and name of each.
    """
    hashes = sorted(_hash(name, _hash(namespace)) for namespace, name in pods)
    return f"{_PREFIX}{xxh64_intdigest(struct.pack(f'<{len(hashes)}Q', *hashes)):016x}"


def _hash(text: str, seed: int = 0) -> int:
    return xxh64_intdigest(text.encode(), seed=seed)
