"""CPU-Pooler's README: its ConfigMap on a node, and the schema of its annotation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from cpupool.config import pool_selection, poolconfig
from cpupool.core.names import Names
from cpupool.webhook.admission.decision import Admitted, Denied, admit
from cpupool.webhook.admission.rules import Rules
from tests.machines import Machine
from tests.pods import container, process
from tests.pods import pod as pod_of
from tests.scenarios.seeds.examples import node, placed, pod, text, values

if TYPE_CHECKING:
    from pathlib import Path

CONFIG_MAP = "cpu_pooler/configmap-filled.yaml"
DPDK = {"nodeType": "dpdk"}


def test_the_containers_of_the_test_pod_have_the_cpus_of_their_pools(folder: Path) -> None:
    machine = Machine(cores=8, threads=2)
    with node(folder, machine, CONFIG_MAP, DPDK) as live:
        assert dict(live.await_pools()) == {
            "nokia.k8s.io/exclusive_one": 2,
            "nokia.k8s.io/exclusive_two": 2,
            "nokia.k8s.io/shared_three": 2000,
        }
        live.run_pod(pod("cpu_pooler/pods.yaml"))
        assert placed(live) == {
            "cpu-test/sharedtestcontainer": "6-7",
            "cpu-test/exclusivetestcontainer": "2-3",
            "cpu-test/siblings": "4,6-7,12",
            "cpu-test/defaulttestcontainer": "0-1",
        }
        variables = {
            each.container: {
                name: value
                for name, value in each.instance.environment.items()
                if name in ("EXCLUSIVE_CPUS", "SHARED_CPUS")
            }
            for each in live.node.processes()
            if each.container
        }
    # The README says "comma separated list"; CPU-Pooler's own plugin writes the list format.
    assert variables == {
        "sharedtestcontainer": {"SHARED_CPUS": "6-7"},
        "exclusivetestcontainer": {"EXCLUSIVE_CPUS": "2-3"},
        "siblings": {"EXCLUSIVE_CPUS": "4,12", "SHARED_CPUS": "6-7"},
        "defaulttestcontainer": {},
    }


def test_a_node_without_the_label_has_no_pools() -> None:
    (source,) = poolconfig.sources("a.yaml", text(CONFIG_MAP), [])
    file = poolconfig.parse(source.name, source.text, Names())
    assert pool_selection.select([file], DPDK) == file
    assert pool_selection.select([file], {"nodeType": "controller"}) is None


NO_ARGS = {key: value for key, value in process().items() if key != "args"}


@pytest.mark.parametrize(
    ("processes", "fits", "admitted"),
    [
        pytest.param([process("/bin/busyloop", "1", cpus=2)], True, True, id="a process"),
        pytest.param([process(), process()], True, True, id="two processes"),
        # The two differ on purpose.
        pytest.param([NO_ARGS], False, True, id="args are optional"),
        pytest.param([], True, False, id="no process"),
        pytest.param([process(cpus=1.5)], True, False, id="a part of a device"),  # type: ignore[arg-type]
        pytest.param([process(cpus=0)], True, False, id="no CPU"),
        # Neither takes it.
        pytest.param([{**process(), "cpus": "1"}], False, False, id="a text"),
        pytest.param([{**process(), "args": "-v"}], False, False, id="args that are no list"),
    ],
)
def test_what_fits_the_schema_of_the_annotation_is_admitted_but_for_amounts(
    processes: list[Any], *, fits: bool, admitted: bool
) -> None:
    schema = values("cpu_pooler/annotation.schema.json")
    value = [{"container": "main", "processes": processes}]
    assert jsonschema.Draft7Validator(schema).is_valid(value) == fits
    body = pod_of(container(pools={"exclusive-a": 2}), processes=json.dumps(value))
    assert isinstance(admit(body, Rules()), Admitted if admitted else Denied)
