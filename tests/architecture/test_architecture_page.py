"""The page of the architecture has the house as it is, and its walks and tables lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from docs import house
from tools.survey import layers_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cpupool"
PAGE = house.PAGE.read_text()
TOP = {room for layer in layers_of(ROOT / "pyproject.toml") for room in layer}
ROOMS = {room for room in TOP if (PACKAGE / room).is_dir()}


def section(title: str) -> str:
    """Return what stands below a heading, the headings in it included."""
    _, _, below = PAGE.partition(f"\n## {title}\n")
    return below.partition("\n## ")[0]


def test_the_picture_is_that_of_the_house_now() -> None:
    assert house.draw() in PAGE, "`python -m docs.house` draws it"
    assert house.updated(PAGE) == PAGE


def test_the_picture_has_every_room() -> None:
    drawn = re.findall(r"^.. │ (\w+)", house.draw(), re.MULTILINE)

    assert set(drawn) == ROOMS
    assert len(drawn) == len(ROOMS)


def test_the_table_has_three_sentences_for_each_room() -> None:
    rows = re.findall(r"^\| `(\w+)/` \| (.+) \| (.+) \| `(.+)` \|$", PAGE, re.MULTILINE)

    assert {room for room, *_ in rows} == ROOMS
    for room, what, others, first in rows:
        assert what.endswith("."), room
        assert others.endswith("."), room
        place = PACKAGE / first
        assert place.is_relative_to(PACKAGE / room) or room == "api", room
        assert (ROOT / first).exists() or place.is_file(), first


def test_every_step_of_a_walk_names_a_place() -> None:
    steps = re.findall(r"^(?:\d+)\. ((?:.+\n)(?:   .+\n)*)", section("Walks"), re.MULTILINE)

    assert len(steps) > 50
    without = [step for step in steps if not re.search(r"`[\w./]+/[\w./]+`", step)]
    # It leads to another walk.
    assert without == ["The rest is a sweep, from its step 6.\n"]


def test_every_place_of_a_table_is_there() -> None:
    cells = re.findall(r"^\| .+\? \| (.+) \|$", section("Where to look"), re.MULTILINE)

    assert len(cells) > 40
    # The files of the package are compared by `test_a_guide_names_files_that_are_there`.
    for cell in cells:
        assert re.search(r"`[\w-]+/[\w./]+`|`python -m \w+`", cell), cell
