from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from cpupool import cli
from cpupool.core.topology import describe
from tests.machines import MACHINES
from tests.pictures import ids
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["telco_with_offline", "hybrid"])
def test_json_is_one_object_with_the_documented_keys(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MACHINES[name].write(tmp_path)

    code = cli.main(["topology", "--topology", str(tmp_path), "--json"])

    assert code == 0
    assert json.loads(capsys.readouterr().out) == describe(MACHINES[name].topology())


def test_json_does_without_the_drawing_library(tmp_path: Path) -> None:
    MACHINES["laptop_4c8t"].write(tmp_path)
    script = (
        "import sys; from cpupool import cli;"
        f"cli.main(['topology', '--json', '--topology', {str(tmp_path)!r}]);"
        "sys.exit('rich' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", script], check=True, timeout=DEADLINE_S)


def test_what_is_no_terminal_gets_no_colour_and_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    MACHINES["epyc_256"].write(tmp_path)

    code = cli.main(["topology", "--topology", str(tmp_path)])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert not any("\x1b" in line for line in lines)


def test_pools_of_a_file_are_painted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MACHINES["laptop_4c8t"].write(tmp_path)
    pools = tmp_path / "poolconfig-a.yaml"
    pools.write_text("pools:\n  exclusive_a: {cpus: '2'}\n  default: {cpus: 0-1}\n")
    svg = tmp_path / "machine.svg"

    code = cli.main(
        ["topology", "--topology", str(tmp_path), "--pools", str(pools), "--svg", str(svg)]
    )

    out = capsys.readouterr().out
    assert code == 0
    assert ids(out, "B") == [2]
    assert ids(out, "b") == [3]
    assert "exclusive_a" in svg.read_text()


def test_the_pool_file_of_a_manifest_is_chosen_by_the_nodes_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MACHINES["laptop_4c8t"].write(tmp_path)
    manifest = tmp_path / "pools.yaml"
    manifest.write_text(
        "kind: ConfigMap\ndata:\n"
        "  poolconfig-a.yaml: |\n    pools: {shared_a: {cpus: '1'}}\n"
        "    nodeSelector: {node: a}\n"
        "  poolconfig-b.yaml: |\n    pools: {shared_b: {cpus: '2'}}\n"
        "    nodeSelector: {node: b}\n"
    )
    asked = ["topology", "--topology", str(tmp_path), "--pools", str(manifest)]

    assert cli.main([*asked, "--node-labels", "node=b"]) == 0
    assert "shared_b" in capsys.readouterr().out
    assert cli.main(asked) == 2
    assert "there are 2 pool files in it; add --node-labels" in capsys.readouterr().err
    assert cli.main([*asked, "--node-labels", "node=c"]) == 2
    assert "for a node with these --node-labels" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("pools:\n  default: {cpus: 0-1}\n", id="a CPU that the machine lacks"),
        pytest.param("pools:\n  default: {cpus: x}\n", id="no CPUs"),
        pytest.param("kind: ConfigMap\ndata: {poolconfig-a.yaml: 'pools: {}'}", id="in a manifest"),
    ],
)
def test_pools_that_cannot_be_used_are_bad_usage(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MACHINES["single_cpu"].write(tmp_path)
    pools = tmp_path / "poolconfig-a.yaml"
    pools.write_text(text)

    code = cli.main(["topology", "--topology", str(tmp_path), "--pools", str(pools)])

    assert code == 2
    assert "poolconfig-a.yaml:2:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--topology", "/no/such"], "--topology: /no/such: no such file or folder; give"),
        (["--nrt", "--svg", "never.svg"], "--nrt draws no picture; leave out --svg or --nrt"),
        (["--pools", "/no/such"], "/no/such: No such file or directory; name a file"),
        (["--json", "--svg", "a.svg"], "not allowed with argument"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["topology", *arguments])

    assert code == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


POOLS = """\
pools:
  exclusive_a: {cpus: 2-3, hyperThreadingPolicy: multiThreaded}
  default: {cpus: "0-1,8-9,16-17,24-25"}
"""


class TestNodeResourceTopology:
    @pytest.fixture
    def asked(self, tmp_path: Path) -> list[str]:
        machine = tmp_path / "machine"
        MACHINES["telco_2s_2n_16c32t"].write(machine)
        node = machine / "sys/devices/system/node/node0"
        (node / "meminfo").write_text("Node 0 MemTotal:       4096 kB\n")
        (node / "hugepages/hugepages-2048kB").mkdir(parents=True)
        (node / "hugepages/hugepages-2048kB/nr_hugepages").write_text("1\n")
        pools = tmp_path / "poolconfig-a.yaml"
        pools.write_text(POOLS)
        command = ["topology", "--topology", str(machine), "--pools", str(pools)]
        return [*command, "--node-name", "node1", "--nrt"]

    def test_it_is_the_object_of_a_node_on_which_no_pod_runs(
        self, asked: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main([*asked, "--json"]) == 0

        body = json.loads(capsys.readouterr().out)
        assert (body["kind"], body["metadata"]) == ("NodeResourceTopology", {"name": "node1"})
        zones = {
            zone["name"]: {each["name"]: each["available"] for each in zone["resources"]}
            for zone in body["zones"]
        }
        assert zones == {
            "node-0": {
                "cpu": "16",
                "hugepages-2Mi": str(2 << 20),
                "memory": str(2 << 20),
                "nokia.k8s.io/exclusive_a": "2",
            },
            "node-1": {
                "cpu": "16",
                "hugepages-2Mi": "0",
                "memory": "0",
                "nokia.k8s.io/exclusive_a": "0",
            },
        }

    def test_without_json_it_is_yaml_for_kubectl(
        self, asked: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main([*asked, "--json"]) == 0
        as_json = capsys.readouterr().out

        assert cli.main(asked) == 0

        assert yaml.safe_load(capsys.readouterr().out) == json.loads(as_json)

    def test_koordinators_scheduler_never_gives_out_a_cpu_of_a_pool(
        self, asked: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main([*asked, "koordinator", "--json"]) == 0

        metadata = json.loads(capsys.readouterr().out)["metadata"]
        assert metadata["labels"] == {"app.kubernetes.io/managed-by": "Koordinator"}
        reservation = json.loads(metadata["annotations"]["node.koordinator.sh/reservation"])
        assert reservation == {"reservedCPUs": "2-7,10-15,18-23,26-31"}

    def test_the_kubelets_topology_manager_is_published(
        self, asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        kubelet = tmp_path / "config.yaml"
        kubelet.write_text(
            "kind: KubeletConfiguration\n"
            "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n"
        )

        assert cli.main([*asked, "--kubelet-config", str(kubelet), "--json"]) == 0

        body = json.loads(capsys.readouterr().out)
        assert body["topologyPolicies"] == ["SingleNUMANodePodLevel"]
        assert {"name": "topologyManagerScope", "value": "pod"} in body["attributes"]

    def test_a_file_that_is_no_kubelets_is_bad_usage(
        self, asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "config.yaml").write_text("kind: Pod\n")

        assert cli.main([*asked, "--kubelet-config", str(tmp_path / "config.yaml")]) == 2

        assert "KubeletConfiguration" in capsys.readouterr().err
