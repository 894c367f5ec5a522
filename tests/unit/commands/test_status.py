from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from cpupool import cli
from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.core.withheld import Withheld
from cpupool.manager.report import (
    ContainerStatus,
    NodeResource,
    NodeStatus,
    PluginAnswer,
    PluginStatus,
    RefusedPod,
)
from cpupool.manager.status_json import to_json
from tests.machines import MACHINES

POOLS = NodePools.of(
    Pool.named("exclusive_a", "2", multi_threaded=True), Pool.named("default", "0-1")
)


def container(name: str, wanted: str, found: str, reason: str = "") -> ContainerStatus:
    return ContainerStatus(
        name=name,
        placement=Placement.CONFINED if reason else Placement.POOLS,
        wanted=CPUSet.parse(wanted),
        found=found,
        reason=reason,
        exclusive=CPUSet(),
    )


RIGHT = NodeStatus(POOLS, (container("ns/owner/main", "2-3", "2-3"),))
WRONG = NodeStatus(
    POOLS,
    (
        container("ns/owner/main", "2-3", "0-7"),
        container("ns/late/main", "0-1", "0-1", "the kubelet has named no devices of exclusive_a"),
    ),
)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    MACHINES["laptop_4c8t"].write(tmp_path)
    return ["--file", str(tmp_path / "status.json"), "--topology", str(tmp_path)]


def show(files: list[str], status: NodeStatus, *options: str) -> int:
    Path(files[1]).write_text(json.dumps(to_json(status)))
    return cli.main(["status", *files, *options])


def test_the_cgroup_that_keeps_cpus_is_named(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    part = Withheld(CPUSet.of(7), "/dpdk.service", "isolated")
    assert show(files, replace(RIGHT, offline=part.cpus, withheld=(part,))) == 0
    drawn = " ".join(capsys.readouterr().out.split())
    assert f"{part.why}; {part.remedy}." in drawn


def test_a_node_where_all_is_right(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert show(files, RIGHT) == 0

    drawn = capsys.readouterr().out
    assert "ns/owner/main" in drawn
    assert "1 of 1 containers are where they belong." in drawn


def test_a_container_astray_and_a_confined_one_are_named(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(files, WRONG) == 1

    drawn = " ".join(capsys.readouterr().out.split())
    assert "ns/owner/main 0-7 2-3 not moved yet" in drawn
    assert "ns/late/main 0-1 0-1 the kubelet has named no devices of" in drawn


def test_what_the_kubelet_places_is_not_astray(files: list[str]) -> None:
    (first, *_) = RIGHT.containers
    kubelets = replace(first, placement=Placement.KUBELET, wanted=CPUSet(), found="0-7")
    assert show(files, replace(RIGHT, containers=(kubelets,))) == 0


def test_an_old_file_is_called_old(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    show(files, RIGHT)
    capsys.readouterr()
    os.utime(files[1], (0, 0))

    assert cli.main(["status", *files]) == 1
    assert "the agent does not run" in capsys.readouterr().out


def test_json_is_what_the_agent_has_written(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(files, RIGHT, "--json") == 0
    assert json.loads(capsys.readouterr().out) == to_json(RIGHT)


def test_the_picture_is_written_as_svg(files: list[str], tmp_path: Path) -> None:
    show(files, RIGHT, "--svg", str(tmp_path / "picture.svg"))

    assert "ns/owner/main" in (tmp_path / "picture.svg").read_text().replace("&#160;", " ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"{}",
        b'{"schema": "cpupool-status/2"}',
        b'{"schema": "cpupool-status/2", "pools": [], "containers": []}',
        b'{"schema": "cpupool-status/2", "pools": {"a": {"kind": "odd"}}, "containers": []}',
        b'{"schema": "cpupool-status/2", "pools": {}, "containers": [{"name": "x"}]}',
        *(
            json.dumps({**to_json(RIGHT), key: value}).encode()
            for key, value in (
                ("enforcement", "odd"),
                ("offline", "odd"),
                ("schema", "cpupool-status/1"),
                ("schema", "cpupool-status/3"),
            )
        ),
        b"\xff\xfe",
    ],
)
def test_a_file_that_is_none_of_ours_is_one_line(
    files: list[str], content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(files[1]).write_bytes(content)

    assert cli.main(["status", *files]) == 2
    printed = capsys.readouterr().err
    assert "is no status file" in printed
    assert printed.count("\n") == 1


def test_a_file_without_the_right_to_read_it_says_who_may(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(files, RIGHT)
    capsys.readouterr()

    # Root may read everything, so the file system is asked to refuse instead.
    def opened(_path: Path, _mode: str) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(Path(files[1])), "open", opened)

    assert cli.main(["status", *files]) == 2
    assert "cannot be read (Permission denied); run this as root" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--file", "-"], "--file, --topology and --svg name files, and the status is drawn in"),
        (["--topology", "/x"], "leave them out, or --kubeconfig"),
        (["--svg", os.devnull], "leave them out, or --kubeconfig"),
        ([], "no node is named; give --node, and see `kubectl get nodes`"),
    ],
)
def test_what_away_from_the_node_makes_no_sense_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in (["--kubeconfig", "/gone"], ["--context", "gone"]):
        assert cli.main(["status", *asked, *options]) == 2
        assert said in capsys.readouterr().err


def test_a_node_of_no_cluster_is_refused(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(files, RIGHT, "--node", "a") == 2
    assert "--node names a node of a cluster; add --kubeconfig" in capsys.readouterr().err


def test_plugins_and_their_answers_are_listed(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    noon = "2026-01-01T12:00:00Z"
    held = "no NIC is left"
    answers = (
        PluginAnswer("cpu", {"CpusetCpus": "2-3"}, confirmed=noon),
        PluginAnswer("example.com/nic", texts=("NIC",), nodes="0"),
        PluginAnswer("memory", why="it has not answered yet"),
    )
    status = replace(
        RIGHT,
        containers=(replace(RIGHT.containers[0], answers=answers),),
        refused=(RefusedPod("ns/late", held, held=True),),
        plugin_folders=("/plugins",),
        plugins=(
            PluginStatus("/plugins/cpu.sock", "cpu", answered=noon),
            PluginStatus("/plugins/memory.sock", "memory", "is away"),
            PluginStatus("/plugins/new.sock", ""),
        ),
        lost=("example.com/nic",),
        node_resources=(
            NodeResource("example.com/nic", 7),
            NodeResource("example.com/gpu", 1, "403 Forbidden", "apply it"),
        ),
    )

    assert show(files, status) == 0

    drawn = {
        tuple(re.split(r" {2,}", line.strip(" │┃")))
        for line in capsys.readouterr().out.splitlines()
    }
    assert drawn >= {
        ("cpu", "/plugins/cpu.sock", f"answered at {noon}"),
        ("memory", "/plugins/memory.sock", "is away"),
        ("not known yet", "/plugins/new.sock", "not asked yet"),
        ("example.com/nic", "gone: its last answers stay"),
        ("example.com/nic", "7", "in the node's status"),
        ("example.com/gpu", "1", "403 Forbidden"),
        ("ns/owner/main", "cpu", "CpusetCpus 2-3", f"confirmed at {noon}"),
        ("ns/late", "held", held),
    }
