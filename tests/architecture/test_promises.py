"""What the user's documents promise beside names and keys: each promise with what keeps it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cpupool import cli
from cpupool.config import poolconfig, settings
from cpupool.config.cpu_manager import Unusable, only_built_in
from cpupool.core import names
from cpupool.core.assignments import Cause, Placement
from cpupool.core.cgroups import Writer
from cpupool.core.cpuset import CPUSet
from cpupool.enforce.foreign_writers import Reason
from cpupool.host.root import HostRoot
from cpupool.plugins import config_file
from cpupool.telemetry.metrics import CONTAINER_STATES, WriteOutcome
from cpupool.version import VERSION
from cpupool.webhook import service
from cpupool.webhook.https.certificate_renewal import (
    BUNDLE,
    CA_KEY,
    SERVING_CERTIFICATE,
    SERVING_KEY,
)
from tests.architecture.test_manifests import KUSTOMIZATIONS, WORKLOADS, kustomized
from tests.guides import blocks
from tests.policies import LowestCPUs

if TYPE_CHECKING:
    from cpupool.policies.base import CPUManagerPolicy

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs/user"
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*.md"))]
SOURCES = [*sorted(ROOT.glob("cpupool/**/*.py")), *sorted(ROOT.glob("starter/*.c"))]
EXAMPLES = sorted(ROOT.glob("examples/**/*.yaml"))
SYNC_S, JITTER = 60, 1.5
"""How often the kubelet looks at a pod (`syncFrequency`), and by how much it may be late.

Source: workerResyncIntervalJitterFactor in pkg/kubelet/pod_workers.go.
"""


def text(path: Path) -> str:
    return path.read_text()


def test_cpupool_is_installed_from_its_folder_alone() -> None:
    extras = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    option = r"(?:-\S+\s+)*"
    # On PyPI the name is not ours. A line may end between the words.
    installed = {
        what
        for path in (*PAGES, *SOURCES)
        for what in re.findall(rf"pip\s+install\s+{option}['\"]?([^\s'\"`]+)", text(path))
    }

    assert installed == {".", *(word for word in installed if re.fullmatch(r"\.\[.+\]", word))}
    named = {extra for what in installed for extra in re.findall(r"[^.\[\],]+", what)}
    # A message has the extra that is missing.
    assert named == {*extras, "{extra}"}


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_an_overlay_that_renames_the_image_names_its_tag(path: Path) -> None:
    renamed = yaml.safe_load(text(path)).get("images", [])
    assert all({"newName", "newTag"} <= one.keys() for one in renamed)
    if not renamed:
        return

    pods = [
        one["spec"]["template"]["spec"]
        for one in kustomized(path.parent)
        if one["kind"] in WORKLOADS
    ]
    images = {container["image"] for pod in pods for container in pod["containers"]}
    assert images == {f"{one['newName']}:{one['newTag']}" for one in renamed}
    # Nobody has built another version from this folder.
    assert {one["newTag"] for one in renamed} == {VERSION}


def shown(*keys: str) -> list[tuple[str, str]]:
    """Return page and text of what pages show as YAML with one of these keys at the top."""
    found = [
        (page.stem, block) for page in DOCS.glob("*.md") for block in blocks(text(page), "yaml")
    ]
    return sorted(each for each in found if not yaml.safe_load(each[1]).keys().isdisjoint(keys))


def first_line(word: str) -> str:
    return word.partition("\n")[0]


@pytest.mark.parametrize(("page", "overlay"), shown("patches", "components"), ids=first_line)
def test_an_overlay_that_a_page_shows_can_be_applied(
    tmp_path: Path, page: str, overlay: str
) -> None:
    whole = {"resources": ["../example"], **yaml.safe_load(overlay)}
    beside = os.path.relpath(ROOT / "daemonsets", tmp_path.resolve())
    written = yaml.safe_dump(whole, width=10**6).replace("../", f"{beside}/")
    (tmp_path / "kustomization.yaml").write_text(written)

    # Kustomize refuses a patch whose object or path is not there.
    assert kustomized(tmp_path), page


@pytest.mark.parametrize(("page", "file"), shown("pools", "cpuManager"), ids=first_line)
def test_a_pool_file_that_a_page_shows_is_valid(page: str, file: str) -> None:
    if page == "resource-plugins":
        config_file.parse("a.yaml", file)
    else:
        poolconfig.parse("a.yaml", file, names.Names(), find_policy=example)


def example(name: str) -> type[CPUManagerPolicy] | Unusable:
    """Find the policy of `examples/policy`, which a page names."""
    return LowestCPUs if name == "highest" else only_built_in(name)


@pytest.mark.parametrize(("page", "file"), shown("nri-missing-facts"), ids=first_line)
def test_a_settings_file_that_a_page_shows_is_valid(page: str, file: str) -> None:
    assert settings.parse(page, file.encode()).keys() >= {"enforcement", "verbose"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_images_of_the_examples_have_a_version(path: Path) -> None:
    images = re.findall(r"^\s*(?:- )?image: *(\S+)", text(path), re.MULTILINE)

    assert all(re.fullmatch(r"[a-z/.]+:[0-9][\w.-]*", image) for image in images)


def test_the_first_start_of_the_webhook_takes_as_long_as_the_page_says() -> None:
    deployment = yaml.safe_load(text(ROOT / "daemonsets/webhook/deployment.yaml"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    page = text(DOCS / "install.md")
    ((least, most),) = re.findall(r"the webhook is usually Ready after (\d+) to (\d+) s", page)

    late_s = service._CHECK_S + container["readinessProbe"]["periodSeconds"]
    assert int(least) == SYNC_S
    assert SYNC_S * JITTER + late_s <= int(most) < SYNC_S * JITTER + late_s + 10
    others = [
        found
        for name in ("webhook.md", "migrating-from-cpu-pooler.md")
        for found in re.findall(r"(\d+) s\]\(install\.md#5-look\)", text(DOCS / name))
    ]
    assert others == [most, most]
    (entries,) = re.findall(r"DATA is (\d+)", page)
    assert int(entries) == len({SERVING_CERTIFICATE, SERVING_KEY, BUNDLE, CA_KEY})


def test_the_pages_about_openshift_name_the_annotations_that_cpupool_knows() -> None:
    known = {
        value for value in vars(names).values() if isinstance(value, str) and ".crio.io" in value
    }
    table = re.findall(
        r"^\| (`[a-z-]+\.crio\.io`.*?) \| (.*) \|$", text(DOCS / "openshift.md"), re.MULTILINE
    )

    said = {
        name: what.startswith("not ")
        for listed, what in table
        for name in re.findall(r"`([^`]+)`", listed)
    }
    assert {name for name, unknown in said.items() if not unknown} == known
    # What the operator allows for its runtime class (99-runtimes.conf).
    kinds = ("load-balancing", "quota", "shared", "c-states", "freq-governor")
    assert said.keys() == {*(f"cpu-{kind}.crio.io" for kind in kinds), "irq-load-balancing.crio.io"}


def test_the_profile_of_the_guide_becomes_the_pool_file_that_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = text(DOCS / "openshift.md")
    lists = dict(re.findall(r"`(reserved|isolated|shared): (\"[0-9-]+\")`", page))
    (pools,) = blocks(page, "yaml")
    (selector,) = re.findall(r"^nodeSelector:\n(?:  .*\n)+", pools, re.MULTILINE)
    spec = f"cpu: {{{', '.join(f'{name}: {cpus}' for name, cpus in lists.items())}}}\n"
    spec += f"workloadHints: {{mixedCpus: true}}\n{selector}"
    profile = {
        "apiVersion": "performance.openshift.io/v2",
        "kind": "PerformanceProfile",
        "metadata": {"name": "example"},
        "spec": yaml.safe_load(spec),
    }
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump(profile))

    assert cli.main(["import", "performance-profile", str(tmp_path / "profile.yaml")]) == 0
    assert pools in capsys.readouterr().out


def test_every_label_and_annotation_that_counts_has_a_page() -> None:
    pages = "\n".join(text(page) for page in DOCS.glob("*.md"))
    ours = names.Names()
    read = {
        found
        for path in sorted(ROOT.glob("cpupool/policies/*/*.py"))
        for node in ast.walk(ast.parse(text(path)))
        if isinstance(node, ast.Constant) and isinstance(found := node.value, str)
        if re.fullmatch(r"[a-z.]*(?:koordinator\.sh|kubewharf\.io)/[\w-]+", found)
    }
    own = {
        getattr(ours, name)
        for name, each in vars(names.Names).items()
        if isinstance(each, property)
    }

    assert len(read) > 10
    assert {name for name in read | own if name not in pages} == set()


def test_cpupool_leaves_the_level_of_the_scheduling_domains_alone() -> None:
    level = "sched_relax_domain_level"

    assert f"It does not write `cpuset.{level}`" in text(DOCS / "load-balancing.md")
    assert [path for path in SOURCES if level in text(path)] == []


@pytest.mark.parametrize("cpus", ["2-3,8", "2,3,8", "5", "0-3", ""])
def test_the_line_of_the_guide_reads_both_forms_of_a_cpu_list(cpus: str) -> None:
    (line,) = [
        block
        for block in blocks(text(DOCS / "migrating-from-cpu-pooler.md"), "sh")
        if "seq" in block
    ]

    done = subprocess.run(
        ["sh", "-c", line],
        env={"EXCLUSIVE_CPUS": cpus, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert [int(cpu) for cpu in done.stdout.split()] == list(CPUSet.parse(cpus))


def test_a_page_speaks_of_no_other_events_than_those_that_are_sent() -> None:
    _, table = text(DOCS / "operations.md").split("\n## Events\n")
    cells = re.findall(r"^\|[^|]*\| (`[^|]*) \|", table.partition("\n## ")[0], re.MULTILINE)
    listed = set(re.findall(r"`([A-Z]\w+)`", " ".join(cells)))
    spoken = {
        reason
        for page in DOCS.glob("*.md")
        for said in re.findall(
            r"\bEvents? ((?:`\w+`(?:,| and| or)? ?)+)", text(page).replace("\n", " ")
        )
        for reason in re.findall(r"`(\w+)`", said)
    }

    # The kubelet's, about a container that is held.
    assert spoken - listed == {"Failed"}


def test_events_are_sent_from_the_rooms_whose_reasons_are_compared() -> None:
    senders = {
        path.relative_to(ROOT / "cpupool").parts[0]
        for path in SOURCES
        if re.search(r"\b_?events\.(?:pod|node)\(", text(path))
    }

    # `test_the_page_of_operations_has_every_event` reads these.
    assert senders == {"agent", "enforce", "host", "qrm", "runtime"}


WORDS = {
    "cpupool_containers_confined": {cause.value for cause in Cause},
    "cpupool_repairs_total": {reason.value for reason in Reason},
    "cpupool_enforcement": {writer.value for writer in Writer},
    "cpupool_node_topology_writes_total": {outcome.value for outcome in WriteOutcome},
    "cpupool_containers": set(CONTAINER_STATES),
}
"""The values of labels."""


@pytest.mark.parametrize("metric", WORDS)
def test_a_metric_has_the_documented_values_of_its_label(metric: str) -> None:
    (label, meaning) = cells(metric)

    assert set(re.findall(r"`([^`]+)`", meaning)) == WORDS[metric], label


def test_an_answer_to_the_runtime_has_a_documented_outcome() -> None:
    (_, meaning) = cells("cpupool_nri_answer_duration_seconds")

    # The kubelet's own containers stay unchanged.
    placed = {placement.value for placement in Placement if placement is not Placement.KUBELET}
    assert placed <= set(re.findall(r"`([^`]+)`", meaning))


def cells(metric: str) -> tuple[str, str]:
    """Return the labels and the meaning of a metric that has a row of its own."""
    (row,) = re.findall(
        rf"^\| `{metric}` \| (.*) \| (.*) \|$", text(DOCS / "operations.md"), re.MULTILINE
    )
    labels, meaning = row
    return labels, meaning


def test_every_file_of_the_agent_has_a_place_in_the_page_of_operations() -> None:
    root = HostRoot()
    _, section = text(DOCS / "operations.md").split("\n## What is on the node\n")
    section = section.partition("\n## ")[0]
    own = {
        path
        for name, each in vars(HostRoot).items()
        if isinstance(each, property)
        and isinstance(path := getattr(root, name), Path)
        and path.parent in (root.run, root.state)
    }

    assert len(own) > 5
    assert {path.name for path in own if f"`{path.name}" not in section} == set()
