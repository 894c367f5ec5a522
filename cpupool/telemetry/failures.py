"""The present failures, so that the log has only one line for a failure that lasts."""

from __future__ import annotations


class Failures:
    """The reasons of failures, by their subjects; one object where there is one subject.

    It is true while anything fails.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def begins(self, reason: object, about: str = "") -> bool:
        """Note a failure; return whether it, or its reason, is new."""
        before = self._reasons.get(about)
        self._reasons[about] = str(reason)
        return self._reasons[about] != before

    def ends(self, about: str = "") -> bool:
        """Note that it works; return whether it has failed before."""
        return self._reasons.pop(about, None) is not None
