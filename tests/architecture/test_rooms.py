"""The unit tests mirror the package: who knows a module knows where its tests are.

Each room has a sign, which says what is in it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests/unit"
PACKAGE = ROOT / "cpupool"
ELSEWHERE = {
    "tests/unit/webhook/admission": {
        *("webhook/admission/pod_requests", "webhook/admission/rules"),
    },
    "tests/unit/commands/doctor": {
        *("commands/checks/cpu_checks", "commands/checks/findings"),
        "commands/checks/node_checks",
        *("commands/checks/plugin_checks", "commands/checks/runtime_checks"),
        *("commands/shell/node", "commands/shell/pool_files", "host/sockets"),
        "commands/checks/koordinator_checks",
        *("commands/checks/plugin_rows", "commands/checks/topology_checks"),
    },
    "tests/unit/commands/test_admit.py": {"commands/shell/rules"},
    "tests/unit/commands/test_inputs.py": {"commands/shell/files", "commands/shell/options"},
    "tests/unit/test_cli.py": {"commands/shell/exit_codes"},
    "tests/unit/commands/test_status.py": {"commands/shell/status_file"},
    "tests/unit/commands/explain": {"commands/shell/reasons"},
    "tests/unit/commands/test_topology.py": {"manager/node_topology"},
    "tests/unit/commands/test_simulate.py": {
        *("commands/pictures/simulation_results", "commands/pictures/plotting"),
    },
    "tests/unit/commands/demo/test_live.py": {"commands/demo/manifests", "commands/demo/samples"},
    "tests/scenarios/test_demo_files.py": {"commands/demo/resizes"},
    "tests/scenarios/test_demo_plugins.py": {"plugins/demo"},
    "tests/unit/config/poolconfig": {"config/pool_file", "config/reader"},
    "tests/unit/config/test_kubelet_config.py": {"config/kubelet_settings"},
    "tests/unit/host": {"host/cgroup_files", "host/root"},
    "tests/unit/host/test_cgroupfs.py": {"core/cgroups"},
    "tests/unit/host/test_mounts.py": {"core/mounts", "host/mounted_files"},
    "tests/unit/webhook/https/server": {"webhook/https/application"},
    "tests/unit/kube": {"kube/fields", "kube/manifest_text", "kube/templates"},
    "tests/unit/local": {
        *("local/ledger", "local/plugins", "local/pods", "local/process"),
        *("local/runtime", "local/services"),
    },
    "tests/unit/simulate": {
        *("simulate/alignment", "simulate/node", "simulate/pool", "simulate/workload"),
    },
    "tests/unit/manager/learner": {"manager/asking"},
    "tests/unit/manager": {
        *("core/orchestration", "core/node_topology", "core/requests"),
        *("manager/facts", "manager/served_requests"),
    },
    "tests/unit/qrm/test_plugin_client.py": {"core/plugin_facts"},
    "tests/unit/policies": {
        *("policies/accumulators/balance", "policies/base"),
        *("policies/barred", "policies/none/policy"),
    },
    "tests/unit/local/test_resize.py": {"local/node_fit"},
    "tests/unit/agent/cpusetter": {"enforce/announcer", "enforce/directories"},
    "tests/unit/qrm/test_resource_manager.py": {"qrm/plugin_worker"},
    "tests/unit/qrm/test_plugin_reports.py": {"qrm/plugin_metrics"},
    "tests/unit/agent/test_pod_failer.py": {"agent/pod_writer"},
    "tests/unit/runtime/nri/holding": {"enforce/intruders"},
    "tests/unit/runtime/nri/plugin": {"runtime/nri/containers", "runtime/nri/conversation"},
    "tests/unit/agent/test_app.py": {
        *("agent/cluster_writers", "agent/enforcement", "agent/setup", "agent/changes"),
        *("agent/single_instance", "loops/telemetry", "qrm/assembly"),
    },
    "tests/scenarios/device_manager": {"agent/device_manager", "agent/mount_keeper"},
    "tests/unit/runtime/nri/session": {"runtime/nri/messages", "runtime/nri/resources"},
    "tests/properties/test_wait_budget.py": {"runtime/nri/wait_budget"},
    "tests/scenarios/certs": {
        *("commands/certs", "webhook/certificate_maker"),
        *("webhook/certificate_keeper", "webhook/objects"),
    },
    "tests/scenarios/webhook": {"webhook/service"},
    "tests/unit/wire": {"wire/checkpoint_checksum"},
    "tests/unit/plugins": {
        *("plugins/base", "plugins/config", "plugins/nics", "plugins/placing", "plugins/state"),
    },
    "tests/unit/qrm/test_answer_record.py": {"wire/sealed"},
    "mypy: protocols only": {"agent/ports", "core/events", "enforce/ports", "manager/ports"},
    "nothing: a number": {"version"},
}
"""Modules without a test module of their own, by what tests them."""
WHOLE = {
    "config/qrm": "a CPU manager policy with rules of its own",
    "commands/inputs": "what every command makes of its files",
    "local/resize": "a pod that is resized in place, by the kubelet and the runtime",
    "manager/mixed_cpus": "shared CPUs beside exclusive ones, in several modules",
    "simulate/resizes": "containers that are resized in place, in traces and on a node",
}
"""Test modules about a part of a room, and which."""


def modules() -> set[str]:
    """Name the package's modules, as `manager/resolve`; generated ones and packages are none."""
    paths = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
    return {
        path.with_suffix("").as_posix()
        for path in paths
        if path.parts[0] != "api" and not path.stem.startswith("__")
    }


def named() -> set[str]:
    """Name what the test modules are about: `<room>/test_<module>` or `<room>/<module>/test_...`.

    What a folder's name says is what its test modules are about, unless it is a room.
    """
    found = set()
    for path in UNIT.rglob("test_*.py"):
        relative = path.relative_to(UNIT)
        room = relative.parent.as_posix()
        is_room = (PACKAGE / room).is_dir()
        found.add((Path(room) / path.stem.removeprefix("test_")).as_posix() if is_room else room)
    return found


def test_every_test_module_names_a_module() -> None:
    assert named() - modules() == WHOLE.keys()


def test_every_module_has_a_test_module_or_a_reason() -> None:
    assert modules() - named() == set().union(*ELSEWHERE.values())


@pytest.mark.parametrize("place", [place for place in ELSEWHERE if place.startswith("tests/")])
def test_the_reason_is_there(place: str) -> None:
    assert (ROOT / place).exists()


ROOMS = sorted(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py"))
_NAMED = re.compile(r"`([a-z_/]+(?:/|\.py))`")
"""A file or a folder on a sign, in the room or in the package."""


def test_every_folder_with_modules_is_a_room() -> None:
    assert {Path(module).parent.as_posix() for module in modules()} <= set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_a_sign_that_is_short_and_names_what_is_there(room: str) -> None:
    folder = PACKAGE / room
    sign = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    # What follows the first paragraph tells how the room works.
    assert 1 <= len(re.findall(r"[.](?:\s|$)", sign.partition("\n\n")[0])) <= 2
    named = _NAMED.findall(sign)
    places = (folder, PACKAGE)
    assert [one for one in named if not any((place / one).exists() for place in places)] == []
