"""The unit tests mirror the package: who knows a module knows where its tests are."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests/unit"
PACKAGE = ROOT / "cpupool"
ELSEWHERE = {
    "tests/unit/admission/review": {
        *("admission/checks", "admission/decision", "admission/pod_requests", "admission/rules"),
    },
    "tests/unit/commands/doctor": {
        *("commands/checks", "commands/node", "commands/pool_files", "commands/runtime_checks"),
        *("commands/koordinator_checks", "commands/plugin_checks", "commands/topology_checks"),
    },
    "tests/unit/commands/test_admit.py": {"commands/rules"},
    "tests/unit/commands/explain": {"commands/reasons"},
    "tests/unit/commands/test_topology.py": {"manager/node_topology"},
    "tests/unit/commands/test_simulate.py": {"commands/outcomes", "commands/plotting"},
    "tests/unit/commands/test_live.py": {"commands/samples"},
    "tests/scenarios/test_demo_plugins.py": {"commands/demo_plugins"},
    "tests/unit/config/poolconfig": {"config/reader"},
    "tests/unit/host": {"host/cgroup_files", "host/root"},
    "tests/unit/https/server": {"https/application", "https/lobby"},
    "tests/unit/kube": {"kube/fields", "kube/manifest_text", "kube/templates"},
    "tests/unit/local": {
        *("local/alignment", "local/ledger", "local/plugins", "local/pods", "local/process"),
        *("local/runtime", "local/services", "local/simulated_node", "local/simulated_pool"),
        "local/workload",
    },
    "tests/unit/manager/choosing": {
        *("manager/aligning", "manager/recovering", "policies/koordinator"),
    },
    "tests/unit/manager": {
        *("core/assignments", "core/koordinator", "core/node_topology"),
        *("core/requests", "manager/facts", "manager/requested"),
    },
    "tests/unit/kubelet/test_resource_plugin.py": {"core/resource_plugins"},
    "tests/unit/policies": {
        *("policies/balance", "policies/base", "policies/none", "policies/pools"),
    },
    "tests/unit/roles/cpusetter": {"enforce/mover", "enforce/sweep"},
    "tests/unit/roles/test_resource_manager.py": {"roles/plugin_worker"},
    "tests/unit/roles/test_plugin_reports.py": {"telemetry/plugin_metrics"},
    "tests/unit/roles/test_pod_failer.py": {"roles/pod_writer"},
    "tests/unit/roles/nri_plugin": {
        *("enforce/intruders", "roles/nri_answers", "roles/nri_obstacles"),
        *("runtime/nri", "runtime/nri_containers"),
    },
    "tests/unit/test_app.py": {"one_agent", "setup", "signals"},
    "tests/scenarios/device_manager": {"roles/device_manager", "roles/mount_keeper"},
    "tests/unit/runtime/nri_session": {"runtime/nri_messages", "runtime/nri_resources"},
    "tests/unit/kubelet/device_plugin": {"kubelet/methods"},
    "tests/properties/test_wait_budget.py": {"roles/wait_budget"},
    "tests/scenarios/certs": {
        *("commands/certs", "kube/webhook_objects", "roles/certificate_maker"),
        "roles/certificates",
    },
    "tests/scenarios/webhook": {"roles/webhook"},
    "tests/unit/wire": {"wire/checkpoints"},
    "tests/unit/plugins": {
        *(
            "core/nics",
            "core/plugin_config",
            "core/plugin_state",
            "plugins/base",
            "plugins/placing",
        ),
    },
    "tests/unit/host/test_answer_record.py": {"host/record_file"},
    "tests/unit/wire/test_answer_record.py": {"wire/sealed"},
    "mypy: protocols only": {"manager/ports"},
    "nothing: a number": {"version"},
}
"""Modules without a test module of their own, by what tests them."""
WHOLE = {
    "config/qrm": "a CPU manager policy with rules of its own",
    "commands/inputs": "what every command makes of its files",
    "manager/mixed_cpus": "shared CPUs beside exclusive ones, in several modules",
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
