"""Every command that a document shows can be called so, and every file that it names is there."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from cpupool import cli
from cpupool.commands.shell.exit_codes import UsageError

ROOT = Path(__file__).parents[2]
USERS = [*sorted((ROOT / "docs/user").glob("*.md")), ROOT / "README.md"]
PAGES = [
    *USERS,
    *(ROOT / name for name in ("CONTRIBUTING.md", "docs/architecture.md", "docs/benchmarks.md")),
    *sorted((ROOT / "docs/dev").glob("*.md")),
]
YOURS = {"daemonsets/mine"}
"""What a reader makes."""
_FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"(?:^|\$ |-- |sudo |&& )cpupool ([a-z][^|>]*)")
_IN_HELP = re.compile(r"^  (?:.*(?:-- |sudo |[|&] ?))?cpupool ([a-z][^|>\n]*)", re.MULTILINE)


def calls(page: str) -> list[list[str]]:
    """Return the arguments of each call of cpupool in the blocks of a page."""
    blocks = [block.replace("\\\n", " ") for block in _FENCED.findall(page)]
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(call, comments=True) for line in lines for call in _CALL.findall(line)]


def parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    (commands,) = (
        action
        for action in cli._parser([command])._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    found: argparse.ArgumentParser = commands.choices[command]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_call_that_a_page_shows_is_one(page: Path) -> None:
    for arguments in calls(page.read_text()):
        try:
            cli._parser(arguments).parse_args(arguments)
        except (UsageError, SystemExit) as error:
            pytest.fail(f"{shlex.join(arguments)}: {error}")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_example_of_a_help_is_a_call(command: str) -> None:
    shown = (parser(command).epilog or "").replace("\\\n", " ")
    found = [shlex.split(call.partition("   ")[0]) for call in _IN_HELP.findall(shown)]

    assert found
    for arguments in found:
        cli._parser(arguments).parse_args(arguments)


@pytest.mark.parametrize("page", USERS, ids=lambda page: page.name)
def test_every_option_that_a_text_gives_a_command_is_its_own(page: Path) -> None:
    text = _FENCED.sub("", page.read_text()).replace("\n", " ")
    for command, rest in re.findall(r"`(?:sudo )?cpupool +([a-z-]+)([^`]*)`", text):
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest))
        assert options <= parser(command)._option_string_actions.keys(), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_the_folder_that_a_page_names_is_there(page: Path) -> None:
    folders = "daemonsets|examples|configmaps|tests|tools|starter|benchmarks|docs|protos"
    named = re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w)", page.read_text())

    assert {one for one in named if not (ROOT / one).exists()} - YOURS == set()


def test_the_pictures_that_pages_show_are_those_of_the_folder() -> None:
    shown = {
        (page.parent / path).resolve()
        for page in PAGES
        for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text())
    }

    assert shown == set((ROOT / "docs/images").iterdir())


def test_every_manifest_and_page_that_a_message_names_is_there() -> None:
    named = {
        one
        for path in ROOT.glob("cpupool/**/*.py")
        for one in re.findall(r"\b(?:daemonsets|configmaps|docs/user)/[\w./-]*\w", path.read_text())
    }

    assert {one for one in named if not (ROOT / one).exists()} - YOURS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_target_and_module_that_a_page_runs_is_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()

    shown = "\n".join([*_FENCED.findall(text), *re.findall(r"`(make [^`]*)`", text)])
    assert set(re.findall(r"\bmake ([a-z-]+)", shown)) <= targets
    for module in re.findall(r"python -m ((?:tests|benchmarks|cpupool)[\w.]*\w)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_guide_for_developers_lists_the_tests_of_the_soak() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (table,) = re.findall(r"^\| test \| proved in .*\n\| ---.*\n((?:\|.*\n)+)", page, re.MULTILINE)

    listed = set(re.findall(r"^\| `([\w/.]+)`", table, re.MULTILINE))
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").glob("*/test_*.py")
        if re.search(r"\bmark\.soak\b", path.read_text())
    }
    assert listed == marked - {str(Path(__file__).relative_to(ROOT))}
