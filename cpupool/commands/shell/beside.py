"""The rules for options that have no effect beside others, or without them.

A command refuses such an option: it ignores none in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Sequence

_RULES: Final = "rules_of_options"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule that says when options have no effect.

    Attributes:
        options: the options.
        needed: one of these must be given with them; none for no such rule.
        against: none of these may be given with them.
        unless: one of these lifts the rule.
    """

    options: Sequence[str]
    needed: Sequence[str] = ()
    against: Sequence[str] = ()
    unless: Sequence[str] = ()

    def refusal(self, given: Collection[str]) -> str:
        """Return the fault of the given options; empty if there is none."""
        if any(option in given for option in self.unless):
            return ""
        for option in self.options:
            if option not in given:
                continue
            for other in self.against:
                if other in given:
                    return f"{option} has no effect with {other}; leave one of them out"
            if self.needed and not any(other in given for other in self.needed):
                return f"{option} is for {' or '.join(self.needed)}; leave it out"
        return ""


def needs(parser: argparse.ArgumentParser, options: str, others: str) -> None:
    """Refuse options without one of others; names are separated by spaces."""
    _add(parser, _Rule(options.split(), needed=others.split()))


def excludes(
    parser: argparse.ArgumentParser, options: str, others: str, *, unless: str = ""
) -> None:
    """Refuse options beside others, unless one of `unless` is given; blanks separate names."""
    _add(parser, _Rule(options.split(), against=others.split(), unless=unless.split()))


def has_rules(parser: argparse.ArgumentParser) -> bool:
    """Return whether options of a command depend on each other."""
    return parser.get_default(_RULES) is not None


def refusal(parser: argparse.ArgumentParser, given: Collection[str]) -> str:
    """Return which of the given options of a command has no effect; empty if there is none."""
    rules: Sequence[_Rule] = parser.get_default(_RULES) or ()
    return next(filter(None, (rule.refusal(given) for rule in rules)), "")


def _add(parser: argparse.ArgumentParser, rule: _Rule) -> None:
    parser.set_defaults(**{_RULES: (*(parser.get_default(_RULES) or ()), rule)})
