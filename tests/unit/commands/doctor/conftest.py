from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.core.names import Names
from cpupool.local.kubelet import EmbeddedKubelet
from tests.cri_server import FakeCRI
from tests.nodes import AnsweringAgent, WrittenNode
from tests.unit.commands.doctor.rows import NOBODY, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def node(folder: Path) -> WrittenNode:
    return WrittenNode(folder)


@pytest.fixture
def kubelet(node: WrittenNode) -> Iterator[EmbeddedKubelet]:
    """Serve the kubelet's sockets, and those of the plugins of both pools."""
    node.root.checkpoint.unlink()
    with ExitStack() as opened:
        serving = opened.enter_context(EmbeddedKubelet(node.root.kubelet, Names()))
        for pool in ("exclusive_a", "shared_x"):
            plugin = opened.enter_context(socket.socket(socket.AF_UNIX))
            plugin.bind(str(node.root.device_plugins / f"cpupool-{pool}.sock"))
            plugin.listen()
        yield serving


@pytest.fixture
def runtime(node: WrittenNode) -> Iterator[FakeCRI]:
    """Serve the container runtime's sockets."""
    with FakeCRI(node.root.cri_sockets[0]) as serving, socket.socket(socket.AF_UNIX) as plugins:
        node.root.nri_socket.parent.mkdir()
        plugins.bind(str(node.root.nri_socket))
        yield serving


@pytest.fixture
def agent() -> Iterator[AnsweringAgent]:
    with AnsweringAgent() as answering:
        yield answering


@pytest.fixture
def examine(node: WrittenNode, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on the node and give its exit code and its rows by check."""

    def run(*options: str, agent: str = NOBODY) -> tuple[int, Rows]:
        code = cli.main(
            [
                *("doctor", "--json", "--host-root", str(node.folder)),
                *("--config", str(node.pool_files), "--agent", agent, *options),
            ]
        )
        document = json.loads(capsys.readouterr().out)
        assert document["schema"] == "cpupool-doctor/1"
        rows: Rows = {}
        for row in document["checks"]:
            rows.setdefault(row.pop("check"), []).append(row)
        return code, rows

    return run
