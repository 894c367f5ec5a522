"""Policies that are not built in, as installed packages: a folder for a process's PYTHONPATH."""

from __future__ import annotations

import importlib
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cpupool.core.assignments import Step
from cpupool.core.cpuset import CPUSet
from cpupool.host import installed_policies
from cpupool.host.installed_policies import GROUP
from cpupool.policies.base import Choice, CPUManagerPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pytest

    from cpupool.core.workloads import Pod
    from cpupool.policies.base import ChoiceRequest
    from cpupool.policies.view import NodeView

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/policy"


@dataclass(frozen=True, slots=True)
class LowestCPUs(CPUManagerPolicy):
    """Gives the lowest CPUs, which the example never does while a higher one is free."""

    def requests(self, pod: Pod) -> Mapping[str, int]:
        return {container.name: container.whole_cpus or 1 for container in pod.containers}

    def choose(self, _view: NodeView, request: ChoiceRequest) -> Choice:
        return Choice(request.has or CPUSet(sorted(request.available)[: request.count]))


@dataclass(frozen=True, slots=True)
class TellingCPUs(LowestCPUs):
    """Gives the lowest CPUs, and says so."""

    def choose(self, view: NodeView, request: ChoiceRequest) -> Choice:
        # A class with slots has no cell for super().
        found = LowestCPUs.choose(self, view, request).cpus
        return Choice(found, (Step("telling", "the lowest CPUs that are free", found),))


@dataclass(frozen=True, slots=True)
class LaterCPUs(LowestCPUs):
    """Gives the lowest CPUs, and never the first."""

    def available(self, view: NodeView) -> CPUSet:
        return view.free - CPUSet.of(view.cpus.first)


def package(folder: Path, name: str, **policies: str) -> None:
    """Install a package in a folder: policy → where its class is."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    points = "".join(f"{policy} = {place}\n" for policy, place in policies.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")


@contextmanager
def found(monkeypatch: pytest.MonkeyPatch, site: Path) -> Iterator[None]:
    """Let this process find the packages of a folder, as a context."""

    def forget() -> None:
        importlib.invalidate_caches()
        installed_policies.find_policy.cache_clear()
        installed_policies._provided.cache_clear()

    with monkeypatch.context() as here:
        here.syspath_prepend(site)
        forget()
        yield
    forget()


def installed(folder: Path) -> str:
    """Return the PYTHONPATH with the example's policy, `highest`, and those of this module."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    site = folder / "site"
    package(site, project["name"].replace("-", "_"), **project["entry-points"][GROUP])
    ours = {"lowest": "tests.policies:LowestCPUs", "later": "tests.policies:LaterCPUs"}
    package(site, "cpupool_tests", **ours)
    return ":".join(map(str, (site, EXAMPLE, ROOT)))
