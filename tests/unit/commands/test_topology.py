from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cpupool import cli
from cpupool.core.topology import describe
from cpupool.host.sysfs import open_topology
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
        (["--nrt", "--svg", "never.svg"], "--nrt has no effect with --svg; leave one of them out"),
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

    def test_drop_ins_are_in_force(
        self, asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        (tmp_path / "config.yaml").write_text(head)
        folder = tmp_path / "kubelet.d"
        folder.mkdir()
        (folder / "1.conf").write_text(f"{head}topologyManagerPolicy: single-numa-node\n")
        asked = [*asked, "--kubelet-config", str(tmp_path / "config.yaml"), "--json"]

        assert cli.main([*asked, "--kubelet-config-dir", str(folder)]) == 0
        body = json.loads(capsys.readouterr().out)
        assert body["topologyPolicies"] == ["SingleNUMANodeContainerLevel"]
        # Nobody aligns cpu: each zone has that of the node.
        cpus = body["zones"][0]["resources"][0]
        assert cpus == {"name": "cpu", "capacity": "32", "allocatable": "32", "available": "32"}

        # Without the kubelet's process a file that does not name the policy says nothing.
        assert cli.main(asked) == 0
        body = json.loads(capsys.readouterr().out)
        assert body["topologyPolicies"] == []
        assert not any("Manager" in each["name"] for each in body["attributes"])

        (folder / "1.conf").write_text("x")
        assert cli.main([*asked, "--kubelet-config-dir", str(folder)]) == 2
        assert "1.conf:1:1: this must be a map" in capsys.readouterr().err


class TestRecord:
    @pytest.fixture
    def machine(self, tmp_path: Path) -> Path:
        folder = tmp_path / "machine"
        MACHINES["telco_with_offline"].write(folder)
        for number in (0, 1):
            node = folder / f"sys/devices/system/node/node{number}"
            (node / "meminfo").write_text(f"Node {number} MemTotal:       4096 kB\n")
        cpu = folder / "sys/devices/system/cpu"
        (cpu / "cpu2/node0").symlink_to(folder / "sys/devices/system/node/node0")
        (cpu / "cpu2/microcode").mkdir()
        (cpu / "cpu2/microcode/reload").write_text("secret")
        (cpu / "vulnerabilities").mkdir()
        (cpu / "vulnerabilities/l1tf").write_text("secret")
        return folder

    def test_a_record_read_elsewhere_is_the_machine(
        self, machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        record = tmp_path / "r.tar.gz"

        assert cli.main(["topology", "--topology", str(machine), "--record", str(record)]) == 0

        said = capsys.readouterr()
        assert said.out.startswith(f"{record}: ")
        assert said.err == ""
        for form in (["--json"], ["--nrt", "--node-name", "n"], []):
            shown = []
            for source in (machine, record):
                assert cli.main(["topology", "--topology", str(source), *form]) == 0
                shown.append(capsys.readouterr().out)
            assert shown[0] == shown[1]

    def test_a_record_goes_to_standard_output_where_no_file_can_be_written(
        self,
        machine: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsysbinary: pytest.CaptureFixture[bytes],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(os, "access", lambda *_: False)

        assert cli.main(["topology", "--topology", str(machine), "--record", "-"]) == 0

        said = capsysbinary.readouterr()
        assert said.err == b""
        assert [path.name for path in tmp_path.iterdir()] == ["machine"]
        record = tmp_path / "r.tar.gz"
        record.write_bytes(said.out)
        assert open_topology(str(record)) == open_topology(str(machine))

    def test_nothing_but_the_topology_is_packed(self, machine: Path, tmp_path: Path) -> None:
        record = tmp_path / "r.tar.gz"
        assert cli.main(["topology", "--topology", str(machine), "--record", str(record)]) == 0

        with tarfile.open(record) as archive:
            members = {member.name: member for member in archive}
        assert all(name.startswith("sys/devices/system/") for name in members)
        assert not any("microcode" in name or "vulnerab" in name for name in members)
        assert members["sys/devices/system/cpu/cpu2/node0"].isdir()
        assert "sys/devices/system/node/node1/meminfo" in members

    def test_a_file_that_is_there_stays(
        self, machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        there = tmp_path / "r.tar.gz"
        there.write_text("mine")

        assert cli.main(["topology", "--topology", str(machine), "--record", str(there)]) == 2

        assert "is there already; name another file with --record" in capsys.readouterr().err
        assert there.read_text() == "mine"

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
    def test_what_stops_it_leaves_no_file(
        self, machine: Path, tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stopped(*_: object) -> None:
            raise error

        monkeypatch.setattr(tarfile.TarFile, "addfile", stopped)
        asked = ["topology", "--topology", str(machine), "--record", str(tmp_path / "r.tar.gz")]
        with suppress(KeyboardInterrupt):
            assert cli.main(asked) != 0
        assert [path.name for path in tmp_path.iterdir()] == ["machine"]

    def test_a_file_that_cannot_be_read_is_named(
        self,
        machine: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        # Root may read everything, so the file system is asked to refuse instead.
        opened = os.open

        def refusing(path: Any, *arguments: Any, **named: Any) -> int:
            if str(path).endswith("node1/distance"):
                raise PermissionError(13, "Permission denied")
            return opened(path, *arguments, **named)

        monkeypatch.setattr(os, "open", refusing)
        record = tmp_path / "r.tar.gz"

        assert cli.main(["topology", "--topology", str(machine), "--record", str(record)]) == 2

        assert "node1/distance: Permission denied" in capsys.readouterr().err
        assert not record.exists()

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (["--json"], "--record has no effect with --json; leave one of them out"),
            (["--nrt"], "--record has no effect with --nrt"),
            (["--record", "/no/such/folder/r"], "/no/such/folder/r cannot be written; name a file"),
        ],
    )
    def test_bad_usage_is_one_line(
        self,
        machine: Path,
        tmp_path: Path,
        more: list[str],
        said: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        record = ["--record", str(tmp_path / "r.tar.gz")]
        assert cli.main(["topology", "--topology", str(machine), *record, *more]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["machine"]

    def test_a_record_is_not_recorded(
        self, machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first, second = tmp_path / "1.tar.gz", tmp_path / "2.tar.gz"
        assert cli.main(["topology", "--topology", str(machine), "--record", str(first)]) == 0
        assert cli.main(["topology", "--topology", str(first), "--record", str(second)]) == 2
        assert f"{first} is a record already; copy it" in capsys.readouterr().err
