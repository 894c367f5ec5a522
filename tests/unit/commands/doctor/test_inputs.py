from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.core.pools import NodePools, Pool
from tests.nodes import POOL_FILE, WrittenNode
from tests.unit.commands.doctor.rows import verdicts

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.local.kubelet import EmbeddedKubelet


def test_nothing_is_known_but_the_machine(examine: Any, node: WrittenNode) -> None:
    node.root.status.unlink()
    (node.pool_files / "poolconfig-a.yaml").rename(node.pool_files / "other")
    (node.root.kubelet / "config.yaml").unlink()
    (node.root.kubelet / "cpu_manager_state").unlink()
    node.root.checkpoint.unlink()

    _, rows = examine()

    for check in ("pool file", "kubelet", "CPU manager", "pools"):
        assert verdicts(rows)[check] == ["unseen"]
        assert rows[check][0]["remedy"]
    assert verdicts(rows)["checkpoint"] == ["ok"]


def test_what_is_wrong_with_a_file_with_and_without_the_machine_is_reported_together(
    examine: Any, node: WrittenNode
) -> None:
    broken = POOL_FILE.replace('"4-7"', '"4-7,99", cpu: 3')
    node.put("etc/cpu-pooler/poolconfig-a.yaml", broken)

    told = " ".join(row["fact"] for row in examine()[1]["pool file"])

    assert "unknown key" in told
    assert "this machine has no CPUs 99" in told


def test_labels_choose_the_pool_file(examine: Any, node: WrittenNode) -> None:
    node.put("etc/cpu-pooler/poolconfig-a.yaml", POOL_FILE + "nodeSelector: {kind: a}\n")
    node.put("etc/cpu-pooler/poolconfig-b.yaml", POOL_FILE + "nodeSelector: {kind: b}\n")
    assert examine()[1]["pool file"] == [
        {
            "verdict": "unseen",
            "fact": "there are 2, and the node's labels choose one of them",
            "remedy": "give the labels with --node-labels",
        }
    ]

    _, rows = examine("--node-labels", "kind=b")

    assert rows["pool file"][0]["fact"] == "poolconfig-b.yaml is in force"


def test_a_node_that_no_pool_file_is_for_is_reported(examine: Any, node: WrittenNode) -> None:
    node.put("etc/cpu-pooler/poolconfig-a.yaml", POOL_FILE + "nodeSelector: {kind: a}\n")

    _, rows = examine("--node-labels", "kind=b")

    assert verdicts(rows)["pool file"] == ["warning"]
    assert "none of 1 is for a node with these labels" in rows["pool file"][0]["fact"]


def test_a_file_without_the_right_to_read_it_is_reported_and_stops_nothing(
    examine: Any, node: WrittenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may read everything, so the file system is asked to refuse instead.
    refused = {node.root.checkpoint, node.root.status, node.root.kubelet / "config.yaml"}
    read = type(node.folder).read_bytes

    def read_bytes(path: Path) -> bytes:
        if path in refused:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(type(node.folder), "read_bytes", read_bytes)

    _, rows = examine()

    for check in ("agent", "kubelet", "checkpoint"):
        assert rows[check][0]["verdict"] == "problem"
        assert "Permission denied" in rows[check][0]["fact"]
        assert rows[check][0]["remedy"] == "run this as root"
    assert len(rows["agent"]) == 1
    assert verdicts(rows)["pools"] == ["ok"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host-root", "/no/such"], "there is no sys in it"),
        (["--kubelet-config", "/no/such"], "/no/such: no such file or folder"),
        (["--config", "/no/such"], "/no/such: no such file or folder"),
        (["--bundle", "/no/such"], "/no/such: no support bundle, or a damaged one (No such file"),
        (["--agent", "localhost:9404"], "'localhost:9404' is no address; write it as http://"),
        (["--agent", "http://a:b"], "'http://a:b' is no address"),
        (["--bundel", "x"], "see cpupool"),
    ],
)
def test_bad_usage_is_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", *options]) == 2

    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_pools_without_an_exclusive_one_disturb_nothing(examine: Any, node: WrittenNode) -> None:
    node.status(pools=NodePools.of(Pool.named("default", "0-31")))
    node.interrupt("0-31", "20")

    _, rows = examine()

    assert verdicts(rows)["owners"] == verdicts(rows)["interrupts"] == ["ok"]


def test_the_pool_file_may_be_a_manifest(examine: Any, node: WrittenNode) -> None:
    indented = "".join(f"    {line}\n" for line in POOL_FILE.splitlines())
    manifest = node.put("a.yaml", f"kind: ConfigMap\ndata:\n  poolconfig-m.yaml: |\n{indented}")

    _, rows = examine("--config", str(manifest))

    assert rows["pool file"][0]["fact"] == "poolconfig-m.yaml is in force"


def test_an_agent_without_pods_may_lack_the_right_to_them(examine: Any, node: WrittenNode) -> None:
    node.status(waiting_for="the list of this node's pods")

    row = examine()[1]["rights"][0]

    assert row["verdict"] == "warning"
    assert "if its log says Forbidden" in row["remedy"]


def test_without_a_machine_there_is_nothing_to_judge(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "sys").mkdir()

    assert cli.main(["doctor", "--host-root", str(folder)]) == 2

    assert "no CPU in devices/system/cpu" in capsys.readouterr().err


def test_a_socket_that_may_not_be_dialled_is_reported(
    examine: Any, kubelet: EmbeddedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(_socket: object, _path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", connect)

    row = examine()[1]["device plugins"][0]

    assert (row["verdict"], row["remedy"]) == ("problem", "run this as root")
