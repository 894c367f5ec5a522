from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    ("layers", "wire/checkpoint_checksum", "cpupool.policies.base"),
    ("admission", "webhook/admission/pod_requests", "cpupool.webhook.admission.rules"),
    ("enforce", "enforce/write_order", "cpupool.enforce.mover"),
    ("layers", "manager/report", "cpupool.enforce.writer_choice"),
    ("manager", "manager/facts", "cpupool.manager.resolve"),
    ("agent", "agent/cpusetter", "cpupool.agent.device_manager"),
    ("webhook", "webhook/admission/review", "cpupool.webhook.objects"),
    ("policies", "policies/static/policy", "cpupool.policies.koordinator.policy"),
    ("koordinator", "policies/koordinator/lending", "cpupool.policies.koordinator.policy"),
    ("commands", "commands/status", "cpupool.commands.doctor"),
    ("qrm", "qrm/plugin_client", "cpupool.qrm.registration"),
    ("qrm", "qrm/question_table", "cpupool.qrm.plugin_admitter"),
    ("nri", "runtime/nri/session", "cpupool.runtime.nri.adapter"),
    ("simulate", "simulate/pool", "cpupool.simulate.node"),
    ("plugins", "plugins/base", "cpupool.plugins.cpu"),
    ("values", "core/bandwidth", "cpupool.core.pools"),
    ("config", "config/reader", "cpupool.config.poolconfig"),
    ("wire", "wire/node_status", "cpupool.wire.node_topology"),
    ("telemetry", "telemetry/health", "cpupool.telemetry.metrics"),
    ("host", "host/files", "cpupool.host.mounts"),
    ("kube", "kube/connection", "cpupool.kube.reflector"),
    ("kubelet", "kubelet/checkpoint", "cpupool.kubelet.podresources"),
    ("local", "local/kubelet", "cpupool.local.runtime"),
    ("rpc", "rpc/http2", "cpupool.rpc.channel"),
    ("loops", "loops/threads", "cpupool.loops.supervisor"),
    ("runtime", "runtime/cri", "cpupool.runtime.nri.plugin"),
    ("pools", "policies/pools/narrowing", "cpupool.policies.pools.preferred_cpus"),
    ("dynamic", "policies/dynamic/pod_words", "cpupool.policies.dynamic.policy"),
    ("katalyst", "policies/qrm/pod_words", "cpupool.policies.qrm.policy"),
    ("accumulators", "policies/accumulators/balance", "cpupool.policies.accumulators.kubelet"),
    ("https", "webhook/https/application", "cpupool.webhook.https.accept_queue"),
    ("shell", "commands/shell/files", "cpupool.commands.shell.options"),
    ("checks", "commands/checks/cpu_checks", "cpupool.commands.checks.runtime_checks"),
    ("pictures", "commands/pictures/painting", "cpupool.commands.pictures.drawing"),
    ("demo", "commands/demo/live", "cpupool.commands.demo.samples"),
    ("decided", "plugins/cpu", "cpupool.host.files"),
    ("api", "agent/device_manager", "cpupool.api.deviceplugin_pb2"),
    ("grpc", "agent/device_manager", "grpc"),
    ("grpc", "agent/device_manager", "grpclib"),
    ("core", "agent/app", "grpc"),
    ("grpc", "host/files", "google.protobuf"),
    ("clients", "agent/configurator", "urllib3"),
    ("clients", "commands/doctor", "urllib3"),
    ("resident", "webhook/certificate_keeper", "cryptography.x509"),
    ("rich", "commands/status", "rich.console"),
    ("rich", "agent/app", "rich"),
    ("matplotlib", "commands/simulate", "matplotlib.figure"),
    ("deciding", "core/cpuset", "os"),
    ("deciding", "policies/pools/preferred_cpus", "random"),
    ("deciding", "config/poolconfig", "pathlib"),
    ("deciding", "wire/device_checkpoint", "io"),
    ("deciding", "webhook/admission/decision", "datetime"),
    ("deciding", "manager/resolve", "time"),
    ("deciding", "enforce/apply", "time"),
    ("deciding", "qrm/question_table", "time"),
    ("pure", "core/topology", "logging"),
    ("pure", "policies/pools/preferred_cpus", "threading"),
    ("pure", "webhook/admission/review", "logging"),
    ("pure", "qrm/question_table", "threading"),
    ("yaml", "wire/device_checkpoint", "yaml"),
    ("yaml", "webhook/admission/review", "yaml"),
]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--config", folder / "pyproject.toml", "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "COLUMNS": "250"},  # no name is broken into lines
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    found: list[dict[str, Any]] = settings["contracts"]
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
    package = imported.partition(".")[0]
    found = imported if package == "cpupool" else package
    assert re.search(rf"{importer} -> {found}\b", broken[contract])


def test_every_contract_has_a_module_that_breaks_it() -> None:
    assert {contract["id"] for contract in contracts()} == {
        contract for contract, _, _ in VIOLATIONS
    }


def test_every_room_of_several_has_layers_that_name_all_of_them() -> None:
    inside = Counter(
        path.parent
        for path in [*(ROOT / "cpupool").rglob("*.py"), *(ROOT / "cpupool").rglob("*/")]
        if path.stem != "__init__" and (path.suffix or (path / "__init__.py").exists())
    )
    rooms = {
        path.relative_to(ROOT).as_posix().replace("/", ".")
        for path, number in inside.items()
        if number > 1 and path.name != "api"
    }
    assert rooms == {
        container
        for contract in contracts()
        if contract["type"] == "layers" and contract["exhaustive"]
        for container in contract["containers"]
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
