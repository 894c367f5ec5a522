from __future__ import annotations

import pytest

from cpupool.config import kubelet_config

MIB = 2**20


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param("", {"memory": 100 * MIB}, id="the usual threshold"),
        pytest.param("evictionHard: {nodefs.available: 5%}", {"memory": 0}, id="no threshold"),
        pytest.param("evictionHard: {memory.available: 5%}", {}, id="a part of the machine"),
        pytest.param("systemReserved: {memory: much}", {}, id="no amount"),
        pytest.param(
            "kubeReserved: {cpu: 1, memory: 1Mi}, systemReserved: {memory: 2Mi, hugepages-1Gi: 1Gi,"
            " ephemeral-storage: 1Gi}",
            {"memory": 103 * MIB, "hugepages-1Gi": 1024 * MIB},
            id="the sum",
        ),
    ],
)
def test_what_is_kept_is_the_sum_of_three_settings(text: str, kept: dict[str, int]) -> None:
    written = f"{{kind: KubeletConfiguration, {text}}}"
    assert kubelet_config.parse("a", written).kept_memory == kept


def test_the_list_of_the_memory_manager_counts_over_all_numa_nodes() -> None:
    text = (
        "kind: KubeletConfiguration\nreservedMemory:\n- {numaNode: 0, limits: {memory: 1Mi}}\n"
        "- {numaNode: 1, limits: {memory: 2Mi, hugepages-2Mi: 2Mi}}\n"
    )
    assert kubelet_config.parse("a", text).reserved_memory == {
        "memory": 3 * MIB,
        "hugepages-2Mi": 2 * MIB,
    }
