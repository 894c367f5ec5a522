"""Suggestions: the known word that a user probably meant by an unknown one."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def nearest(word: str, known: Collection[str]) -> str:
    """Return the known word that is nearest; empty if none has a similarity of 0.6 (difflib)."""
    by_lower_case = {word.lower(): word for word in known}
    close = difflib.get_close_matches(word.lower(), by_lower_case, n=1)
    return by_lower_case[close[0]] if close else ""


def hint(word: str, known: Collection[str]) -> str:
    """Suggest the known word that is nearest."""
    meant = nearest(word, known)
    return f"did you mean {meant}?" if meant else f"use {' or '.join(known)}"
