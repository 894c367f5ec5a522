"""`cpupool status --kubeconfig`: the command as a process, and its own run in the agent's pod."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cpupool.commands.shell import agent_pod
from cpupool.kube.resources import PODS
from cpupool.manager.status_json import to_json
from tests.apiserver.executions import Execution
from tests.kubeconfigs import Login, login
from tests.machines import MACHINES
from tests.unit.commands.shell.test_agent_pod import RUNNING, agent
from tests.unit.commands.test_status import RIGHT, WRONG
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

POD = PODS.object("cpupool-agent-x", "cpupool").text
PLAIN = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


@dataclass
class World:
    """A cluster with the agent's pod, in which `cpupool` has the files of its node.

    Attributes:
        pod: the folder of these files, and of the programs in the pod.
    """

    cluster: Login
    pod: Path

    def execute(self, command: Sequence[str]) -> Execution:
        """Run a command in the pod: a process without a terminal and without our variables."""
        ended = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**PLAIN, "PATH": f"{self.pod}:{PLAIN['PATH']}"},
            timeout=DEADLINE_S,
        )
        return Execution(ended.stdout, ended.stderr, ended.returncode)

    @property
    def command(self) -> list[str]:
        path = self.cluster.kubeconfig({"jane": self.cluster.certificate("jane")})
        away = ["--kubeconfig", str(path), "--context", "jane", "--node", "node-a"]
        return [sys.executable, "-W", "error", "-m", "cpupool", "status", *away]

    def away(self, *options: str, **variables: str) -> tuple[bytes, bytes, int]:
        """Run the admin's command."""
        ended = subprocess.run(
            [*self.command, *options],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**PLAIN, **variables},
            timeout=DEADLINE_S,
        )
        return ended.stdout, ended.stderr, ended.returncode


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    MACHINES["laptop_4c8t"].write(folder)
    status = folder / "status.json"
    status.write_text(json.dumps(to_json(RIGHT)))
    inside = ["-m", "cpupool", '"$@"', "--file", str(status), "--topology", str(folder)]
    program = folder / "cpupool"
    program.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {' '.join(inside)}\n")
    program.chmod(0o755)
    with login(folder, admin=True) as cluster:
        found = World(cluster, folder)
        cluster.server.set_pods([agent("cpupool-agent-x", RUNNING)])
        cluster.server.containers[POD, agent_pod.CONTAINER] = found.execute
        yield found


def test_the_picture_is_that_of_the_pod_with_the_width_of_here(world: World) -> None:
    narrow = world.execute(["env", "COLUMNS=40", "cpupool", "status"]).stdout
    assert narrow != world.execute(["cpupool", "status"]).stdout
    assert "╭" in narrow.decode()

    assert world.away(COLUMNS="40") == (narrow, b"", 0)


def test_the_exit_code_and_the_json_are_those_of_the_pod(world: World) -> None:
    (world.pod / "status.json").write_text(json.dumps(to_json(WRONG)))
    out, err, code = world.away("--json")
    assert (json.loads(out), err, code) == (to_json(WRONG), b"", 1)


def test_what_the_command_in_the_pod_says_is_reported(world: World) -> None:
    (world.pod / "status.json").unlink()
    out, err, code = world.away()
    assert (out, code) == (b"", 2)
    assert err.startswith(b"cpupool: ")
    assert b"status.json is not there: start `cpupool agent` on this node" in err


def test_a_refusal_is_one_line(world: World) -> None:
    world.cluster.server.forbidden = {("create", "pods/exec")}
    out, err, code = world.away()
    assert (out, code) == (b"", 1)
    assert err == (
        b"cpupool: API server: create pods/exec: 403 Forbidden: create pods/exec is forbidden; give"
        b" this user the verbs get and create on pods/exec, in the namespace of the pod\n"
    )


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}])
def test_a_terminal_has_the_colours_that_it_has_on_the_node(
    world: World, variables: dict[str, str]
) -> None:
    given = {"TERM": "xterm-256color", "COLUMNS": "100", **variables}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        world.command, stdin=theirs, stdout=theirs, stderr=theirs, env={**PLAIN, **given}
    ) as process:
        os.close(theirs)
        shown = b"".join(_read(ours))
    os.close(ours)

    forced = [f"{key}={value}" for key, value in {**given, "FORCE_COLOR": "1"}.items()]
    there = world.execute(["env", *forced, "cpupool", "status"]).stdout
    assert process.returncode == 0
    assert shown.replace(b"\r\n", b"\n") == there
    assert (b"\x1b[38;5;" in there) is (not variables)


def _read(terminal: int) -> Iterator[bytes]:
    # EIO is the end of what the other side has written.
    with suppress(OSError):
        while piece := os.read(terminal, 4096):
            yield piece
