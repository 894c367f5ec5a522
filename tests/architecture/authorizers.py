"""The API server's `authorizer` for policies, in another implementation of CEL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cel

if TYPE_CHECKING:
    from collections.abc import Collection


def context(rights: Collection[str], **values: object) -> cel.Context:
    """Return the values of a policy, where the caller has these rights: group/resource/verb."""
    functions = {
        name: lambda before, word: f"{before}{'/' if before else ''}{word}"
        for name in ("group", "resource", "check")
    }
    allowed = {"allowed": lambda asked: asked in rights}
    return cel.Context(variables={"authorizer": "", **values}, functions={**functions, **allowed})
