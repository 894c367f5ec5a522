from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import grimp
import pytest

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

# contract, module, what it must not import.
VIOLATIONS = [
    ("layers", "core/cpuset", "cpupool.manager.manager"),
    ("layers", "host/sysfs", "cpupool.kube.views"),
    ("layers", "wire/annotation", "cpupool.admission.rules"),
    ("admission", "admission/pod_requests", "cpupool.admission.rules"),
    ("enforce", "enforce/plan", "cpupool.enforce.mover"),
    ("layers", "manager/report", "cpupool.enforce.writers"),
    ("manager", "manager/facts", "cpupool.manager.resolve"),
    ("roles", "roles/cpusetter", "cpupool.roles.device_manager"),
    ("plugins", "plugins/base", "cpupool.plugins.cpu"),
    ("decided", "plugins/cpu", "cpupool.host.files"),
    ("api", "roles/device_manager", "cpupool.api.deviceplugin_pb2"),
    ("grpc", "roles/device_manager", "grpc"),
    ("grpc", "roles/device_manager", "grpclib"),
    ("core", "app", "grpc"),
    ("grpc", "host/files", "google.protobuf"),
    ("clients", "roles/configurator", "urllib3"),
    ("clients", "commands/doctor", "urllib3"),
    ("resident", "roles/certificates", "cryptography.x509"),
    ("rich", "commands/status", "rich.console"),
    ("rich", "app", "rich"),
    ("matplotlib", "commands/simulate", "matplotlib.figure"),
    ("deciding", "core/cpuset", "os"),
    ("deciding", "policies/pool_choice", "random"),
    ("deciding", "config/poolconfig", "pathlib"),
    ("deciding", "wire/kubelet_checkpoint", "io"),
    ("deciding", "admission/decision", "datetime"),
    ("deciding", "manager/resolve", "time"),
    ("deciding", "enforce/apply", "time"),
    ("pure", "core/topology", "logging"),
    ("pure", "policies/pool_choice", "threading"),
    ("pure", "admission/review", "logging"),
    ("yaml", "wire/kubelet_checkpoint", "yaml"),
    ("yaml", "admission/review", "yaml"),
]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--config", folder / "pyproject.toml", "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def contracts() -> list[dict[str, str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    found: list[dict[str, str]] = settings["contracts"]
    return found


def test_every_module_imports_only_from_layers_below_its_own() -> None:
    result = lint_imports(ROOT)

    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return contract → what is found in a copy of the package with all `VIOLATIONS`."""
    folder = tmp_path_factory.mktemp("broken")
    shutil.copy(ROOT / "pyproject.toml", folder)
    compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "cpupool", folder / "cpupool", ignore=compiled)
    for _, module, imported in VIOLATIONS:
        with (folder / f"cpupool/{module}.py").open("a") as file:
            file.write(f"\nimport {imported}\n")

    result = lint_imports(folder)

    assert result.returncode == 1, result.stdout
    _, _, found = result.stdout.partition("Broken contracts")
    sections = re.split(r"^(.+)\n-+\n", found, flags=re.MULTILINE)[1:]
    by_name = dict(zip(sections[::2], sections[1::2], strict=True))
    return {contract["id"]: by_name.get(contract["name"], "") for contract in contracts()}


@pytest.mark.parametrize(("contract", "module", "imported"), VIOLATIONS)
def test_a_module_that_breaks_a_contract_is_found(
    broken: Mapping[str, str], contract: str, module: str, imported: str
) -> None:
    importer = f"cpupool.{module.replace('/', '.')}"
    assert f"{importer} -> {imported.split('.', maxsplit=1)[0]}" in broken[contract]


def test_every_contract_has_a_module_that_breaks_it() -> None:
    assert {contract["id"] for contract in contracts()} == {
        contract for contract, _, _ in VIOLATIONS
    }


CIRCLES = {
    frozenset({"cpupool.core.cpuset", "cpupool.core.errors"}): "a problem names CPUs, by type only",
}
"""Files that may import each other, and why."""


@pytest.mark.parametrize("package", ["cpupool", "benchmarks"])
def test_no_files_import_each_other_in_a_circle(package: str) -> None:
    found = circles(grimp.build_graph(package, cache_dir=None))

    assert found == {circle for circle in CIRCLES if min(circle).startswith(package)}


def test_a_circle_is_found() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in ("ab", "bc", "ca", "cd"):
        graph.add_import(importer=importer, imported=imported)

    assert circles(graph) == {frozenset("abc")}


def circles(graph: grimp.ImportGraph) -> set[frozenset[str]]:
    """Give the sets of modules that import each other, types included."""
    below = {module: graph.find_upstream_modules(module) for module in graph.modules}
    groups = (
        frozenset({module, *(other for other in seen if module in below[other])})
        for module, seen in below.items()
    )
    return {group for group in groups if len(group) > 1}
