"""The seeds' examples at the shell: what each command says stands beside the example.

`x.expected` has the calls for the example `x`: each with its output, standard error last, and its
exit code. Three dots stand for any text.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from tests.scenarios.seeds.examples import SEEDS

if TYPE_CHECKING:
    from pathlib import Path

CALL = re.compile(r"^\$ cpupool (.+)\n((?:.*\n)*?)\[(\d)\]\n", re.MULTILINE)


@pytest.mark.parametrize(
    "expected",
    sorted(SEEDS.glob("*/*.expected")),
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_a_command_says_what_stands_beside_the_example(
    expected: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(expected.parent)
    assert not CALL.sub("", expected.read_text()), "it has calls only"
    for options, output, code in CALL.findall(expected.read_text()):
        assert cli.main(shlex.split(options)) == int(code), options
        printed = "".join(capsys.readouterr())
        assert re.fullmatch(re.escape(output).replace(r"\.\.\.", "(?s:.*)"), printed), printed
