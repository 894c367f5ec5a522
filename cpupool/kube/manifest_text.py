"""The texts that people write manifests in: JSON, or YAML as Kubernetes reads it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

import yaml
from yaml.composer import Composer
from yaml.resolver import BaseResolver

from cpupool.config import yaml_loader
from cpupool.config.yaml_loader import FastLoader
from cpupool.core.errors import Location, ManifestError
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

_JSON: Final = re.compile(r'\s*\{(?=\s*(?:["}]|$))(?s:(?!.*\n---))')
"""An object of JSON, and no document of YAML after it: `{kind: Pod}` is YAML, too."""
_BETWEEN: Final = re.compile(r"\s*")
_UNEXPECTED: Final = (ValueError, LookupError, AttributeError, OverflowError, TypeError)
"""The errors of PyYAML's constructors for a value that its tag does not allow, as `!!bool x`."""


class _Kubernetes(Composer, BaseResolver):
    """YAML as Kubernetes reads it: a date is a text. An alias is refused: few make a huge body."""

    _depth = 0
    # PyYAML declares this attribute as one that is assigned to.
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[attr-defined]  # the parser's
        what = ""
        if isinstance(event, yaml.AliasEvent):
            what = "aliases are not supported; write the value out in full"
        elif self._depth == json_text.DEEPEST:
            what = f"this is nested deeper than {json_text.DEEPEST} levels"
        if what:
            mark = cast("yaml.Mark", event.start_mark)
            raise yaml.MarkedYAMLError(problem=what, problem_mark=mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _FastLoader(_Kubernetes, FastLoader):
    """libyaml's parser."""


class _Loader(_Kubernetes, yaml.SafeLoader):
    """PyYAML's parser."""


def documents(name: str, text: str) -> Iterator[tuple[Location, object]]:
    """Yield the documents of a text, with the places where they begin: values that JSON has.

    Args:
        name: the file, for messages.
        text: JSON texts one after the other, as kubectl takes them, or YAML.

    Raises:
        ManifestError: the text is neither.
    """
    try:
        # JSON by its own parser: a node's PodList is long, and JSON may be indented with tabs.
        if _JSON.match(text):
            yield from _json_objects(name, text)
            return
        read = 0
        if yaml_loader.is_fast(text):
            # PyYAML's own parser goes on where this one fails, and says what is wrong.
            with suppress(yaml.YAMLError, *_UNEXPECTED):
                for location, document in _each(name, _FastLoader(text)):
                    read += 1
                    yield location, document
                return
        yield from islice(_each(name, _Loader(text)), read, None)
    except JSONRefused as error:
        where = Location(name, error.line, error.column)
        raise ManifestError(str(where), "", error.what) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Location(name, mark.line + 1, mark.column + 1) if mark else Location(name)
        what = error.problem or "this is not YAML"
        if isinstance(error, yaml.scanner.ScannerError | yaml.parser.ParserError):
            what += "; correct the YAML"
        raise ManifestError(str(where), "", what) from error
    except (yaml.YAMLError, *_UNEXPECTED) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ManifestError(name, "", f"this is not YAML that JSON can say: {what}") from error


def _json_objects(name: str, text: str) -> Iterator[tuple[Location, object]]:
    where, line, end = Location(name), 1, 0
    while (start := _BETWEEN.match(text, end).end()) < len(text):  # type: ignore[union-attr]
        line += text.count("\n", end, start)
        if end:
            where = Location(name, line, start - text.rfind("\n", 0, start))
        value, after = json_text.first(text, start)
        yield where, value
        line += text.count("\n", start, after)
        end = after


def _each(name: str, loader: _FastLoader | _Loader) -> Iterator[tuple[Location, object]]:
    while loader.check_node():
        node = cast("yaml.Node", loader.get_node())
        start = node.start_mark
        document = loader.construct_document(node)
        # No API server takes a set, bytes or NaN.
        json.dumps(document, allow_nan=False)
        yield Location(name, start.line + 1, start.column + 1), document
