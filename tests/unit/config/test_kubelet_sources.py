from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.config import kubelet_config
from cpupool.config.kubelet_sources import command_line, drop_in
from cpupool.core.cpu_manager import Scope, TopologyPolicy
from cpupool.core.errors import ConfigError
from cpupool.core.node_topology import TopologyManager

if TYPE_CHECKING:
    from cpupool.config.kubelet_settings import KubeletConfig

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def effective(
    file: str, *drop_ins: str, flags: tuple[str, ...] = (), complete: bool = True
) -> KubeletConfig:
    later = [drop_in(f"{number}.conf", HEAD + text) for number, text in enumerate(drop_ins)]
    line = command_line(("kubelet", *flags)).settings
    main = kubelet_config.table("config.yaml", HEAD + file)
    return kubelet_config.effective(main, later, line, complete=complete)


def test_the_last_source_that_names_a_setting_counts() -> None:
    file, first, second = (f"topologyManagerPolicy: {word}\n" for word in ("none", "a", "b"))

    assert effective(file, first, second).topology_manager_policy == "b"
    assert effective(file, first, second, "cpuManagerPolicy: none\n").topology_manager_policy == "b"
    flags = ("--topology-manager-policy=c",)
    assert effective(file, first, flags=flags).topology_manager_policy == "c"


def test_maps_are_merged_and_a_null_removes() -> None:
    file = (
        "kubeReserved: {cpu: 2, memory: 1Gi}\nsystemReserved: {cpu: 1}\nfeatureGates: {A: true}\n"
    )
    merged = effective(
        file, "kubeReserved: {cpu: 3}\nsystemReserved: null\nfeatureGates: {B: false}"
    )

    assert (merged.kube_reserved_milli, merged.system_reserved_milli) == (3000, 0)
    assert merged.kept_memory["memory"] == 2**30 + 100 * 2**20
    assert merged.feature_gates == {"A": True, "B": False}
    assert effective(file, "kubeReserved: {cpu: ~}").kube_reserved_milli == 0


def test_a_flag_takes_the_place_of_a_map_but_of_feature_gates() -> None:
    file = "kubeReserved: {cpu: 2, memory: 1Gi}\nfeatureGates: {A: true, B: true}\n"
    config = effective(
        file, flags=("--kube-reserved=cpu=500m", "--feature-gates", "B=false,C=true")
    )

    assert config.kube_reserved_milli == 500
    assert config.kept_memory["memory"] == 100 * 2**20
    assert config.feature_gates == {"A": True, "B": False, "C": True}


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--reserved-cpus=0-1",), id="with ="),
        pytest.param(("--reserved-cpus", "0-1"), id="two words"),
        pytest.param(("--reserved_cpus=0-1",), id="underscores"),
        pytest.param(("--reserved-cpus=5", "--v=2", "--reserved-cpus=0-1"), id="given twice"),
        pytest.param(("-v", "2", "--reserved-cpus=0-1", "--", "--reserved-cpus=9"), id="after --"),
    ],
)
def test_a_flag_is_read_in_every_form(flags: tuple[str, ...]) -> None:
    assert str(effective("", flags=flags).reserved_cpus) == "0-1"


def test_the_flags_name_file_and_folder() -> None:
    line = command_line(("/usr/bin/kubelet", "--config=/a/b.yaml", "--config-dir", "/a/d/"))
    assert (line.config, line.config_dir) == ("/a/b.yaml", "/a/d/")

    empty = command_line(("kubelet", "--config-dir", "", "--cpu-manager-policy", "static"))
    assert (empty.config, empty.config_dir) == ("", "")
    assert "cpuManagerPolicy" in empty.settings.entries


def test_every_flag_has_its_setting() -> None:
    config = effective(
        "",
        flags=(
            "--cpu-manager-policy=static",
            "--cpu-manager-policy-options=full-pcpus-only=true",
            "--memory-manager-policy=Static",
            "--reserved-memory=0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=1Gi",
            "--topology-manager-policy=restricted",
            "--topology-manager-scope=pod",
            "--topology-manager-policy-options=max-allowable-numa-nodes=16",
            "--system-reserved=cpu=1,memory=1Gi",
            "--eviction-hard=memory.available<1Gi,nodefs.available<5%",
            "--system-reserved-cgroup=/system",
        ),
    )

    assert config.cpu_manager_options == {"full-pcpus-only": "true"}
    assert (config.cpu_manager_policy, config.memory_manager_policy) == ("static", "Static")
    assert config.reserved_memory == {"memory": 2 * 2**30, "hugepages-2Mi": 4 * 2**20}
    assert config.kept_memory == {"memory": 2 * 2**30}
    assert config.topology_manager == TopologyManager(TopologyPolicy.RESTRICTED, Scope.POD)
    assert config.topology_manager_options == {"max-allowable-numa-nodes": "16"}
    assert (config.system_reserved_milli, config.reserved_cgroups) == (
        1000,
        ("systemReservedCgroup",),
    )


def test_a_mistake_is_said_where_it_stands() -> None:
    with pytest.raises(ConfigError, match=r"^0\.conf:3:21: reservedSystemCPUs: 'x' is not a CPU"):
        effective("reservedSystemCPUs: 0", "reservedSystemCPUs: x")
    with pytest.raises(ConfigError, match=r"^the kubelet's --reserved-cpus: reservedSystemCPUs: "):
        effective("", flags=("--reserved-cpus=x",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the kubelet does not start with a drop-in whose apiVersion is not"),
        ("# nothing\n", "whose apiVersion is not kubelet.config.k8s.io/v1beta1; write apiVersion"),
        ("kind: KubeletConfiguration\n", "whose apiVersion is not"),
        ("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: Pod\n", "whose kind is not Kubelet"),
        ("- a\n", "this must be a map"),
        ("a: [\n", "expected the node content"),
        ("\x00", "the character U.0000 is not allowed in YAML"),
    ],
)
def test_a_drop_in_without_its_kind_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        drop_in("10.conf", text)


def test_what_no_source_names_is_known_only_if_all_are() -> None:
    for complete, known in ((True, "none"), (False, None)):
        config = effective("reservedSystemCPUs: 0", complete=complete)
        assert config.known_cpu_manager == known
        manager = config.topology_manager
        assert (manager.policy.value if manager else None) == known
    named = effective("topologyManagerPolicy: none\ncpuManagerPolicy: none\n", complete=False)
    assert (named.topology_manager, named.known_cpu_manager) == (TopologyManager(), "none")
    assert named.known_memory_manager is None
