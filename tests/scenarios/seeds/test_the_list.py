"""README.md lists the examples: it names every file, and every example of the documents."""

from __future__ import annotations

import re

import pytest

from tests import testdata
from tests.scenarios.seeds.examples import SEEDS

DOCUMENTS = {
    "mixed_cpus": 10,
    "cpu_manager": 5,
    "cpu_pooler": 4,
    "koordinator": 8,
    "qos_resource_manager": 22,
}
"""The folders, in the order of the seeds, and how many examples each document has."""
README = (SEEDS / "README.md").read_text()
ROW = re.compile(r"^\| (\d+)(?:-(\d+))? \| .+ \| (?:`(.+)` )?\| .+ \|$", re.MULTILINE)
BEGINS = re.compile(r"^(?: ?\{ ?|apiVersion: .*|type \w+ .*|const \(|\$ .+|\| Pod \[.*)$")
"""The first line of an example; other lines in a fence follow one."""
FENCE = "```"


def section(folder: str) -> str:
    """Return what the README says of a document."""
    return README.partition(f"\n## {folder}: ")[2].partition("\n## ")[0]


@pytest.mark.parametrize("folder", DOCUMENTS)
def test_every_example_and_every_file_is_listed(folder: str) -> None:
    said = section(folder)
    rows = ROW.findall(said)
    assert len(rows) == DOCUMENTS[folder]
    listed = {file for *_, file in rows if file}
    assert {file for file in listed if not (SEEDS / folder / file).exists()} == set()
    for path in (SEEDS / folder).iterdir():
        # An example that is put right, an expected value or a pool file belongs to an example.
        name = re.sub(r"-(indented|filled|limits|pools)$|^(node-)?pools$", "", path.stem)
        assert name in said, path


@pytest.fixture(params=DOCUMENTS)
def folder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def document(folder: str) -> list[str]:
    """Read the document whose examples a folder has."""
    seeds = sorted((testdata.folder().parent / "seeds").glob("*.txt"))
    if len(seeds) != len(DOCUMENTS):
        pytest.skip(f"the {len(DOCUMENTS)} documents are not beside the test data")
    return seeds[list(DOCUMENTS).index(folder)].read_text().splitlines()


def test_an_example_stands_here_word_for_word(folder: str, document: list[str]) -> None:
    for first, last, file in ROW.findall(section(folder)):
        if file and file != "words.md":
            here = [bare(line) for line in (SEEDS / folder / file).read_text().splitlines()]
            there = [bare(line) for line in document[int(first) - 1 : int(last or first)]]
            assert "\n".join(there) in "\n".join(here), file


def test_no_example_is_missing(folder: str, document: list[str]) -> None:
    listed = {
        number
        for first, last, _ in ROW.findall(section(folder))
        for number in range(int(first), int(last or first) + 1)
    }
    fenced = False
    for number, line in enumerate(document, start=1):
        fenced ^= line.startswith(FENCE)
        if BEGINS.match(line) or (fenced and not line.startswith(FENCE)):
            assert number in listed, f"{number}: {line}"


def bare(line: str) -> str:
    """Return a line without its indentation, and a row of a table without its last column."""
    return re.sub(r" \| [^|]* \|$", "", line.strip()) if line.startswith("|") else line.strip()
