"""The bounds of a document hold with libyaml's parser, too, and nothing needs it."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice

import pytest
import yaml

from cpupool.config import document, yaml_loader
from cpupool.config.document import Origin, Table
from cpupool.core.errors import ConfigError, ManifestError, Problem
from cpupool.kube import manifest_text

LEVELS = 100_000
BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
DEEP = {
    "brackets": "[" * LEVELS + "\n",
    "braces": "{a: " * LEVELS + "\n",
    "dashes": "- " * LEVELS + "a\n",
    "questions": "? " * LEVELS + "a\n",
    "lines": "".join(f"{' ' * level}a:\n" for level in range(2000)),
}


def test_an_alias_is_refused_at_its_place() -> None:
    assert yaml_loader.is_fast(BOMB)
    with pytest.raises(
        ConfigError, match=r"^f:2:8: aliases are not supported; write the value out"
    ):
        document.read(BOMB, Origin("f"), [])
    with pytest.raises(ManifestError, match=r"^f:2:8: aliases are not supported"):
        list(manifest_text.documents("f", BOMB))


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_nesting_is_refused(text: str) -> None:
    assert yaml_loader.is_fast(text)
    with pytest.raises(ConfigError, match="nested deeper than 32 levels"):
        document.read(text, Origin("f"), [])
    if len(text) < LEVELS:
        with pytest.raises(ManifestError, match="nested deeper than"):
            list(manifest_text.documents("f", text))


def test_a_key_that_stands_twice_is_a_problem() -> None:
    problems: list[Problem] = []
    read = document.read("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n", Origin("f"), problems)

    assert isinstance(read, Table)
    assert [str(problem) for problem in problems] == [
        f"f:{place}: {path}: this key stands here twice, first in line {first}; keep one of the two"
        for place, path, first in (("4:3", "b.c", 3), ("5:1", "a", 1))
    ]


def test_documents_before_a_mistake_are_read_once() -> None:
    text = "a: 1\n---\nb: 2\n---\nc: ]\n"
    read = manifest_text.documents("f", text)

    assert [(str(place), body) for place, body in islice(read, 2)] == [
        ("f:1:1", {"a": 1}),
        ("f:3:1", {"b": 2}),
    ]
    with pytest.raises(ManifestError, match=r"^f:5:4: "):
        next(read)


def test_a_long_file_takes_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_self: object, _text: str) -> None:
        raise AssertionError("PyYAML's own parser is asked")

    if yaml.__with_libyaml__:
        monkeypatch.setattr(yaml.SafeLoader, "__init__", refused)
    text = "---\n".join(f"kind: Pod\nmetadata: {{name: pod-{number}}}\n" for number in range(50))

    assert len(list(manifest_text.documents("f", text))) == 50
    assert document.read("pools: {default: {cpus: 0}}\n", Origin("f"), [])


def test_without_libyaml_pyyaml_reads_and_writes() -> None:
    program = (
        "import sys; sys.modules['yaml._yaml'] = None\n"
        "import yaml; assert not yaml.__with_libyaml__\n"
        "from cpupool import cli\n"
        "assert cli.main(['validate', 'configmaps/vm-8cpu.yaml']) == 0\n"
        "assert cli.main(['admit', 'examples/exclusive.yaml']) == 0\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "ok: " in ended.stdout
    assert "kind: Pod" in ended.stdout
