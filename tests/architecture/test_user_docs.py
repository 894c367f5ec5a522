"""What the user's documents name is there, and every setting and metric stands in them."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cpupool import cli
from cpupool.qrm.plugin_metrics import PluginMetrics
from cpupool.telemetry.metrics import Metrics, ProcessMetrics, WebhookMetrics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs/user"
NO_EVENTS = {
    "CPUs",
    "ContainerKey",
    "GetResourcesAllocation",
    "GetTopologyHints",
    "PreStartContainer",
}
"""Texts of the form of an Event's reason that are none: a type, and calls of plugins."""
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*.md"))]
LINKING = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
STATEMENT = re.compile(r"\b(?:participant \w+ as|\w+--?>>\w+:|Note over [\w,]+:|rect rgb\(|alt )")
"""The beginning of a statement of a diagram."""


def of_agent() -> Metrics:
    """Return the metrics of an agent, with those of plugins."""
    metrics = Metrics()
    PluginMetrics(metrics.registry)
    return metrics


def own(metrics: ProcessMetrics) -> set[str]:
    """Give cpupool's metrics by the names that a query uses, each histogram by its base."""
    _, body = metrics.render()
    families = {
        family.name + "_total" * (family.type == "counter")
        for family in text_string_to_metric_families(body.decode())
        if family.name.startswith("cpupool_")
    }
    return {name for name in families if not name.endswith("_created")}


@pytest.mark.parametrize(
    ("command", "page"), [("agent", "configuration.md"), ("webhook", "webhook.md")]
)
def test_every_argument_is_documented(
    capsys: pytest.CaptureFixture[str], command: str, page: str
) -> None:
    text = (DOCS / page).read_text()

    with pytest.raises(SystemExit):
        cli.main([command, "--help"])

    taken = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert set(re.findall(r"^\| `(--[a-z-]+)` \|", text, re.MULTILINE)) == taken


def test_the_readme_names_every_command() -> None:
    page = (ROOT / "README.md").read_text()

    named = re.findall(r"^\| `cpupool ([a-z-]+)", page, re.MULTILINE)
    assert set(named) == set(cli.COMMANDS)


def test_the_readme_has_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (told,) = re.findall(
        r"^## Dependencies\n(.*?)^## ", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    base, extras = re.findall(r"(?:^\|.*\n)+", told, re.MULTILINE)
    extra, named = "", dict[str, set[str]]()
    for cells in re.findall(r"^\| (.*?) ?\| (.*) \| .* \|$", extras, re.MULTILINE)[2:]:
        extra = cells[0].strip("`") or extra
        named.setdefault(extra, set()).update(cells[1].split(", "))

    assert set(re.findall(r"^\| ([\w-]+) \|", base, re.MULTILINE)[2:]) == packages(
        project["dependencies"]
    )
    assert named == {
        extra: packages(needed) for extra, needed in project["optional-dependencies"].items()
    }


def packages(requirements: list[str]) -> set[str]:
    """Return the names in requirements as `h11>=0.16`."""
    return {re.split(r"[<>=]", one)[0] for one in requirements}


def test_the_readme_shows_what_admit_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "README.md").read_text()
    ((command, shown),) = re.findall(
        r"^```\n\$ cpupool (admit .*)\n((?s:.+?))```", page, re.MULTILINE
    )
    monkeypatch.chdir(ROOT)

    assert cli.main(command.split()) == 0
    assert capsys.readouterr().out.endswith(shown)


@pytest.mark.parametrize(
    ("page", "metrics"), [("operations.md", of_agent()), ("webhook.md", WebhookMetrics())]
)
def test_the_metrics_of_a_page_are_those_of_its_process(page: str, metrics: ProcessMetrics) -> None:
    named, there = set(re.findall(r"\bcpupool_\w+", (DOCS / page).read_text())), own(metrics)

    histograms = re.compile(r"_(bucket|sum|count)$")
    assert {name if name in there else histograms.sub("", name) for name in named} == there


def test_the_page_of_operations_has_every_event() -> None:
    page = (DOCS / "operations.md").read_text()
    rooms = [ROOT / "cpupool" / room for room in ("agent", "enforce", "host", "qrm")]
    # The other modules of NRI name its messages, and this client the methods of its.
    nri = [ROOT / f"cpupool/runtime/nri/{name}.py" for name in ("responses", "holding", "plugin")]
    names = ("plugin_client", "katalyst_checkpoint_codec")
    codecs = {ROOT / f"cpupool/qrm/{name}.py" for name in names}
    found = {path for room in rooms for path in room.glob("*.py")} - codecs
    files = [ROOT / "cpupool/core/errors.py", *nri, *found]
    texts = {
        node.value
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    (table,) = re.findall(r"^## Events\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    listed = " ".join(re.findall(r"^\|[^|]*\| (`[^|]*) \|", table, re.MULTILINE))

    sent = {text for text in texts if re.fullmatch(r"[A-Z]+[a-z]*[A-Z][A-Za-z]*[a-z]", text)}
    assert set(re.findall(r"`(\w+)`", listed)) == sent - NO_EVENTS


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_a_page_links_to_what_is_there(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]+)?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_yaml_that_a_page_shows_can_be_copied(page: Path) -> None:
    for shown in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        assert list(yaml.safe_load_all(shown))


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_each_line_of_a_diagram_is_one_statement(page: Path) -> None:
    for shown in re.findall(r"^```mermaid\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        kind, *lines = map(str.strip, shown.splitlines())
        assert kind == "sequenceDiagram"
        assert [line for line in lines if not is_statement(line)] == []


def is_statement(line: str) -> bool:
    """Return whether a line of a sequence diagram has one statement, from its beginning."""
    begins = [found.start() for found in STATEMENT.finditer(line)]
    return begins == [0] or line in {"end", "else"}


def anchors(page: Path) -> set[str]:
    """Give the anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}


GUIDES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs/architecture.md",
    *sorted((ROOT / "docs/dev/decisions").glob("*.md")),
]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda page: page.name)
def test_a_guide_names_files_that_are_there(guide: Path) -> None:
    rooms = "|".join(path.name for path in sorted((ROOT / "cpupool").iterdir()) if path.is_dir())
    named = set(re.findall(rf"`(?:cpupool/)?((?:{rooms})/[\w/]+\.py)", guide.read_text()))

    assert {file for file in named if not (ROOT / "cpupool" / file).is_file()} == set()


@pytest.mark.parametrize("guide", GUIDES, ids=lambda page: page.name)
def test_a_guide_names_functions_and_classes_where_they_are(guide: Path) -> None:
    text = " ".join(guide.read_text().split())
    named = re.findall(r"`(\w+)` (?:in |\()`(?:cpupool/)?([\w/]+\.py)`", text)

    assert [
        f"{name} in {file}"
        for name, file in named
        if not re.search(rf"(def|class) {name}\b", (ROOT / "cpupool" / file).read_text())
    ] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda page: page.name)
def test_a_guide_names_tests_that_are_there(guide: Path) -> None:
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}

    assert set(re.findall(r"\b(test_\w+\.py)`", guide.read_text())) - there == set()


def test_each_row_of_the_index_of_troubles_leads_to_an_answer() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    (index,) = re.findall(
        r"^## What `kubectl get pods` shows\n(.*?)^## ", page, re.MULTILINE | re.DOTALL
    )
    rows = [line.split(" | ") for line in re.findall(r"^\| (.*) \|$", index, re.MULTILINE)][2:]

    assert {word for row in rows for word in re.findall(r"`(\w+)`", row[0])} >= {
        *("Pending", "ContainerCreating", "CreateContainerError", "RunContainerError"),
        *("CrashLoopBackOff", "UnexpectedAdmissionError", "TopologyAffinityError", "OutOfcpu"),
    }
    assert [row for row in rows if "](" not in row[-1]] == []


def test_the_list_of_decisions_has_the_title_of_each() -> None:
    folder = ROOT / "docs/dev/decisions"
    titles = {page.name: page.read_text().splitlines()[0] for page in folder.glob("0*.md")}
    page = (folder / "README.md").read_text()

    listed = re.findall(r"^\* \[(\d+)\]\((.+)\) (.+)$", page, re.MULTILINE)
    assert [(number, name, f"# {title}") for number, name, title in listed] == [
        (name[:4], name, title) for name, title in sorted(titles.items())
    ]
