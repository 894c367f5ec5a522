"""Koordinator's annotations, as koord-scheduler reads them and an admin writes them."""

from __future__ import annotations

import json
from dataclasses import replace

from cpupool.core.cpuset import CPUSet
from cpupool.core.node_topology import CPUModel
from cpupool.core.orchestration import Reservation, SystemCPUs
from cpupool.policies.koordinator import topology_annotations
from cpupool.policies.koordinator.shared_sets import SharedPool, SharedPools
from cpupool.policies.koordinator.topology_annotations import (
    EffectiveCPUManager,
    PodCPUs,
    Published,
)
from tests.machines import MACHINES

NODE = Published(
    topology=MACHINES["laptop_4c8t"].topology(),
    model=CPUModel("Xeon", "GenuineIntel", turbo=True, l3_mask="7ff"),
    manager=EffectiveCPUManager("static", {"full-pcpus-only": "true"}, CPUSet.parse("0-1")),
    pods=(
        PodCPUs("b", "late", "u2", CPUSet.parse("4-5")),
        PodCPUs("a", "early", "u1", CPUSet.parse("6")),
    ),
    pools=SharedPools((SharedPool(0, 0, CPUSet.parse("0-3")),), (SharedPool(0, 0, CPUSet()),)),
    reservation=Reservation(written={"applyPolicy": "ReservedCPUsOnly", "reservedCPUs": "7"}),
    reserved=CPUSet.parse("6-7"),
    system=SystemCPUs(written={"cpuset": "3"}),
)


def _written(node: Published) -> dict[str, object]:
    return {key: json.loads(text) for key, text in topology_annotations.written(node).items()}


class TestWritten:
    def test_the_values_are_those_of_koordlet(self) -> None:
        found = _written(NODE)

        detail = found.pop("node.koordinator.sh/cpu-topology")
        assert found == {
            "kubelet.koordinator.sh/cpu-manager-policy": {
                "policy": "static",
                "options": {"full-pcpus-only": "true"},
                "reservedCPUs": "0-1",
            },
            "node.koordinator.sh/pod-cpu-allocs": [
                {
                    "namespace": "a",
                    "name": "early",
                    "uid": "u1",
                    "cpuset": "6",
                    "managedByKubelet": True,
                },
                {
                    "namespace": "b",
                    "name": "late",
                    "uid": "u2",
                    "cpuset": "4-5",
                    "managedByKubelet": True,
                },
            ],
            "node.koordinator.sh/cpu-shared-pools": [{"socket": 0, "node": 0, "cpuset": "0-3"}],
            "node.koordinator.sh/be-cpu-shared-pools": [{"socket": 0, "node": 0}],
            "node.koordinator.sh/cpu-basic-info": {
                "cpuModel": "Xeon",
                "hyperThreadEnabled": True,
                "turboEnabled": True,
                "catL3CbmMask": "7ff",
                "vendorID": "GenuineIntel",
            },
            "node.koordinator.sh/reservation": {
                "applyPolicy": "ReservedCPUsOnly",
                "reservedCPUs": "6-7",
            },
            "node.koordinator.sh/system-qos-resource": {"cpuset": "3"},
        }
        assert detail == {
            "detail": [{"id": cpu, "core": cpu // 2, "socket": 0, "node": 0} for cpu in range(8)]
        }

    def test_nothing_is_written_as_koordlet_writes_it(self) -> None:
        empty = replace(
            NODE, pods=(), reservation=Reservation(), reserved=CPUSet(), system=SystemCPUs()
        )

        found = topology_annotations.written(empty)

        assert found["node.koordinator.sh/pod-cpu-allocs"] == "null"
        assert found["node.koordinator.sh/reservation"] == "{}"
        assert found["node.koordinator.sh/system-qos-resource"] == "{}"

    def test_a_core_has_a_number_that_no_other_core_of_the_machine_has(self) -> None:
        node = replace(NODE, topology=MACHINES["telco_2s_2n_16c32t"].topology())

        detail = json.loads(topology_annotations.written(node)["node.koordinator.sh/cpu-topology"])[
            "detail"
        ]

        assert [each["id"] for each in detail] == list(range(32))
        assert {each["core"] for each in detail} == set(range(16))
        assert {(each["socket"], each["node"]) for each in detail} == {(0, 0), (1, 1)}
