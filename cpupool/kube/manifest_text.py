"""The texts that people write manifests in: JSON, or YAML as Kubernetes reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

import yaml

from cpupool.core.errors import Location, ManifestError
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNEXPECTED: Final = (ValueError, LookupError, AttributeError, OverflowError, TypeError)
"""What PyYAML's constructors raise for a value that its tag does not allow, as `!!bool x`."""


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a date is a text. An alias is refused: few make a huge body."""

    _depth = 0
    # PyYAML declares this attribute as one that is assigned to.
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # a gap in the stubs
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


def documents(name: str, text: str) -> Iterator[tuple[Location, object]]:
    """Yield the documents of a text, with the places where they begin: values that JSON has.

    Args:
        name: the file, for messages.
        text: one JSON text, or YAML.

    Raises:
        ManifestError: the text is neither.
    """
    try:
        # JSON by its own parser: a node's PodList is long, and JSON may be indented with tabs.
        if text.lstrip().startswith("{"):
            yield Location(name), json_text.load(text)
            return
        loader = _Loader(text)
        while loader.check_node():
            node = cast("yaml.Node", loader.get_node())
            start = node.start_mark
            location = Location(name, start.line + 1, start.column + 1)
            document = loader.construct_document(node)
            # No API server takes a set, bytes or NaN.
            json.dumps(document, allow_nan=False)
            yield location, document
    except JSONRefused as error:
        where = Location(name, error.line, error.column)
        raise ManifestError(str(where), "", error.what) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Location(name, mark.line + 1, mark.column + 1) if mark else Location(name)
        raise ManifestError(str(where), "", error.problem or "this is not YAML") from error
    except (yaml.YAMLError, *_UNEXPECTED) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ManifestError(name, "", f"this is not YAML that JSON can say: {what}") from error
