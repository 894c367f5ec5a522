"""`cpuManager.eligible` and `cpuManager.systemPods`: which pods own CPUs, and which have a set."""

from __future__ import annotations

import pytest

from cpupool.config import pool_rules
from cpupool.core.cpu_manager import CPUManager, Eligible, SystemPods
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from tests.machines import MACHINES
from tests.unit.config.poolconfig.files import parse, refused

FILE = """\
pools: {{exclusive_a: {{cpus: 6-7}}, default: {{cpus: 0-5}}}}
cpuManager:
  policy: static
  reserved: {reserved}
  systemPods:
    namespaces: {namespaces}
    cpus: {cpus}
"""
NAMES = "[kube-system, monitoring]"


def written(namespaces: str = NAMES, cpus: str = "2-3", reserved: str = "0-1") -> str:
    return FILE.format(namespaces=namespaces, cpus=cpus, reserved=reserved)


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_containers_or_pods_are_eligible(policy: str) -> None:
    text = f"cpuManager: {{policy: {policy}, reserved: 1, eligible: {{}}}}"
    taken = {word: parse(text.replace("{}", word)).pools.cpu_manager for word in ("pod", "null")}
    assert {each.eligible for each in taken.values()} == {Eligible.POD}
    container = parse(text.replace("{}", "container")).pools.cpu_manager
    assert container.eligible is Eligible.CONTAINER
    (problem,) = refused(text.replace("{}", "all"))
    assert "cpuManager.eligible: unknown value 'all'; use pod or container" in problem


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_pods_with_resources_of_their_own_get_cpus_or_share(policy: str) -> None:
    text = f"cpuManager: {{policy: {policy}, reserved: 1, podLevelResources: {{}}}}"
    taken = {
        word: parse(text.replace("{}", word)).pools.cpu_manager.pod_level
        for word in ("true", "false", "null")
    }
    assert taken == {"true": True, "false": False, "null": False}
    assert not parse("cpuManager: {policy: static, reserved: 1}").pools.cpu_manager.pod_level


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("bubble", "'bubble' is not a truth value; write true or false"),
        ("2", "'2' is not a truth value; write true or false"),
        ("[true]", "this must be text"),
        ("{pod: true}", "this must be text"),
    ],
)
def test_another_word_about_them_is_refused_where_it_stands(word: str, problem: str) -> None:
    text = f"cpuManager:\n  policy: static\n  reserved: 1\n  podLevelResources: {word}\n"
    (found,) = refused(text)
    assert found.startswith("a.yaml:4:22: cpuManager.podLevelResources: ")
    assert problem in found


@pytest.mark.parametrize("policy", ["koordinator", "qrm"])
@pytest.mark.parametrize(
    "setting", ["eligible: container", "systemPods: {cpus: 1-1}", "podLevelResources: true"]
)
def test_other_policies_have_no_such_setting(policy: str, setting: str) -> None:
    problems = refused(f"cpuManager: {{policy: {policy}, reserved: 1, {setting}}}")
    what = f"the policy {policy} has no such setting; remove it, or write policy: static"
    assert what in problems[-1]


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_system_pods_have_namespaces_and_cpus(policy: str) -> None:
    text = written(namespaces="[kube-system, monitoring, kube-system]", cpus="2")
    manager = parse(text.replace("static", policy)).pools.cpu_manager
    assert manager.system_pods == SystemPods(("kube-system", "monitoring"), CPUSet.of(2))
    absent = "cpuManager: {policy: static, reserved: 1, systemPods: {}}"
    assert parse(absent).pools.cpu_manager.system_pods == SystemPods()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            written(namespaces="[]"),
            "a.yaml:6:17: cpuManager.systemPods.namespaces: this must be a list with a namespace;"
            " write the namespaces of the pods, as [kube-system]",
            id="no namespace",
        ),
        pytest.param(
            written(namespaces="kube-system"),
            "a.yaml:6:17: cpuManager.systemPods.namespaces: this must be a list with a namespace;",
            id="no list",
        ),
        pytest.param(
            written(namespaces="[kube-system, Kube_System]"),
            "a.yaml:6:31: cpuManager.systemPods.namespaces[1]: 'Kube_System' is not the name of a"
            " namespace; use up to 63 lower-case letters, digits and -, and no - at the ends",
            id="no name",
        ),
        pytest.param(
            written(namespaces="[[a]]"),
            "a.yaml:6:18: cpuManager.systemPods.namespaces[0]: this must be text",
            id="no text",
        ),
        pytest.param(
            written(cpus='""'),
            "a.yaml:7:11: cpuManager.systemPods.cpus: system pods need a CPU;"
            " write CPUs of the default pool, or no systemPods",
            id="no CPU",
        ),
        pytest.param(
            written().replace("    cpus: 2-3\n", ""),
            "a.yaml:5:3: cpuManager.systemPods.cpus: system pods need a CPU;",
            id="without CPUs",
        ),
        pytest.param(
            written(cpus="two"),
            "a.yaml:7:11: cpuManager.systemPods.cpus: 'two' is not a CPU list",
            id="no CPU list",
        ),
        pytest.param(
            written().replace("    cpus", "    cores"),
            "a.yaml:7:5: cpuManager.systemPods.cores: unknown key",
            id="another key",
        ),
        pytest.param(
            written(cpus="1-2"),
            "a.yaml:7:11: cpuManager.systemPods.cpus: CPUs 1 are reserved, too, and nobody but"
            " system pods runs on theirs; name other CPUs, here or in reserved",
            id="reserved",
        ),
        pytest.param(
            written(cpus="5-6"),
            "a.yaml:7:11: cpuManager.systemPods.cpus: CPUs 6 are not among the default pool's CPUs,"
            " which are 0-5; name other CPUs, or add these to the default pool",
            id="another pool",
        ),
        pytest.param(
            written(cpus="2-5"),
            "a.yaml:4:13: cpuManager.reserved: 2 of the 2 CPUs of the default pool beside"
            " systemPods are reserved, so no container can own a CPU;",
            id="nothing is left",
        ),
        pytest.param(
            written(cpus="2-5", reserved="2"),
            "a.yaml:4:13: cpuManager.reserved: 2 of the 2 CPUs of the default pool beside",
            id="nothing is left by number",
        ),
    ],
)
def test_what_cannot_be_is_refused_where_it_stands(text: str, problem: str) -> None:
    assert any(each.startswith(problem) for each in refused(text)), refused(text)


def test_cpus_that_are_offline_are_a_doubt_and_those_of_no_machine_are_refused() -> None:
    def told(system: str, offline: str) -> list[str]:
        pods = SystemPods(("kube-system",), CPUSet.parse(system))
        manager = CPUManager("static", CPUSet.of(0), system_pods=pods)
        pools = NodePools.of(Pool.named("default", "0-5,70"), cpu_manager=manager)
        machine = MACHINES["laptop_4c8t"].without(offline).topology()
        found = pool_rules.validate(pools, machine)
        return [f"{each.severity.value}: {each}" for each in found if "systemPods" in each.path]

    assert told("2-3", "") == told("2-3", "2") == []
    (doubt,) = told("2-3", "2-3")
    assert doubt.startswith("warning: ")
    what = "the CPUs 2-3 are offline: system pods share the default pool; bring them online, or"
    assert what in doubt
    (wrong,) = told("6", "")
    assert wrong.startswith("error: ")
