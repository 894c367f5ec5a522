"""What the user's documents name is there, and every setting and metric stands in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cpupool import cli
from cpupool.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs/user"
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*.md"))]


def metrics() -> set[str]:
    """Give the agent's own metrics by the names that a query uses, each histogram by its base."""
    _, body = Metrics().render()
    families = {
        family.name + "_total" * (family.type == "counter")
        for family in text_string_to_metric_families(body.decode())
        if family.name.startswith("cpupool_")
    }
    return {name for name in families if not name.endswith("_created")}


def test_every_argument_of_the_agent_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "configuration.md").read_text()

    with pytest.raises(SystemExit):
        cli.main(["agent", "--help"])

    taken = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert set(re.findall(r"^\| `(--[a-z-]+)` \|", page, re.MULTILINE)) == taken


def test_the_readme_names_every_command() -> None:
    page = (ROOT / "README.md").read_text()

    named = re.findall(r"^\| `cpupool ([a-z-]+)", page, re.MULTILINE)
    assert set(named) == set(cli.COMMANDS)


def test_the_metrics_of_the_operations_page_are_those_of_the_agent() -> None:
    named = set(re.findall(r"\bcpupool_\w+", (DOCS / "operations.md").read_text()))

    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} == metrics()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_links_to_what_is_there(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]+)?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked)


def anchors(page: Path) -> set[str]:
    """Give the anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}
