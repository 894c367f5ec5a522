"""Reads YAML with libyaml's parser, which is ten times as fast as PyYAML's own.

PyYAML's parser decides what a text means. This module uses it in two cases: to describe an error,
and for a text that libyaml reads in another way. Such a text has a tab or a byte order mark, an
empty value at its very end or within brackets, or a plain scalar within brackets with a question
mark. The composer and the constructors are always PyYAML's, so a subclass can refuse aliases and
deep nesting.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.reader import Reader
from yaml.resolver import Resolver

if TYPE_CHECKING or yaml.__with_libyaml__:
    from yaml._yaml import CParser
else:

    class CParser:
        """Takes its place; `is_fast` lets no text come here."""


_UNLIKE: Final = re.compile("[\t\ufeff]")


class ReadOtherwise(yaml.YAMLError):
    """A part of a text that libyaml reads in another way than PyYAML."""


def is_fast(text: str) -> bool:
    """Return whether `FastLoader` can be tried on a text."""
    return (
        bool(yaml.__with_libyaml__)
        and not _UNLIKE.search(text)
        and not Reader.NON_PRINTABLE.search(text)
    )


class FastLoader(Composer, CParser, SafeConstructor, Resolver):
    """A loader as `yaml.SafeLoader`, only for a text that `is_fast`.

    Any error of its own, `ReadOtherwise` included, asks for `yaml.SafeLoader` in its place.
    """

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._end = len(text)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node as PyYAML does.

        Raises:
            ReadOtherwise: libyaml reads it in another way.
        """
        event = cast("yaml.Event", self.peek_event())
        if cast("yaml.Mark", event.start_mark).index >= self._end:
            raise ReadOtherwise
        if (
            isinstance(parent, yaml.CollectionNode)
            and parent.flow_style
            and isinstance(event, yaml.ScalarEvent)
            and not event.style
            and (not event.value or "?" in event.value)
        ):
            raise ReadOtherwise
        return super().compose_node(parent, index)
