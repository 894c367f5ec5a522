"""The door: what commands print of words that others have written."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, TextIO

import pytest

from cpupool import cli
from cpupool.commands.shell import door
from cpupool.core.errors import ConfigError, CPUPoolError, HostFileError, Problem
from cpupool.telemetry import log as logs
from tests import statuses
from tests.machines import MACHINES
from tests.nodes import DAEMON, WrittenNode
from tests.printed import EVIL, printed
from tests.unit.commands.doctor.rows import NOBODY
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

NAME = EVIL.replace("\x00", "").replace("\ud800", "\udc80")
"""The same, as far as a file can be called so."""
SHOWN = "\\u001b]0;owned\\u0007"


def by_out(out: TextIO) -> None:
    out.write(EVIL)
    out.writelines([EVIL, EVIL])


def by_print(_out: TextIO) -> None:
    """As a library may do."""
    print(EVIL)  # noqa: T201
    print(EVIL, file=sys.stderr)  # noqa: T201


def by_log(_out: TextIO) -> None:
    logs.set_up(logging.INFO)
    logs.get("cpupool.tests").info("said", words=EVIL)
    logging.getLogger("cpupool.tests").warning(EVIL)
    logs.set_up(logging.INFO, json=True)
    logs.get("cpupool.tests").info("said", words=EVIL)


def by_error(_out: TextIO) -> NoReturn:
    raise HostFileError(EVIL, EVIL, EVIL)


def by_problems(_out: TextIO) -> NoReturn:
    raise ConfigError([Problem(EVIL, "mend it"), Problem("another", EVIL, path=EVIL)])


def by_os(_out: TextIO) -> NoReturn:
    raise OSError(28, EVIL, EVIL)


@pytest.mark.parametrize("command", cli.COMMANDS)
@pytest.mark.parametrize("says", [by_out, by_print, by_log, by_error, by_problems, by_os])
def test_a_command_has_no_way_beside_the_door(
    command: str, says: Callable[[TextIO], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(
        f"cpupool.commands.{cli._MODULES.get(command, command.replace('-', '_'))}"
    )

    def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], _: str) -> None:
        def run(_arguments: argparse.Namespace, out: TextIO) -> int:
            says(out)
            return 0

        commands.add_parser(command).set_defaults(run=run)

    monkeypatch.setattr(module, "add_parser", add_parser)
    monkeypatch.setattr(logging.getLogger("cpupool"), "handlers", [])
    # Half a surrogate pair in a captured log would end a process of pytest-xdist.
    monkeypatch.setattr(logging.getLogger("cpupool"), "propagate", False)

    found = printed(command)
    found.check()
    assert SHOWN in found.out + found.err
    if says in (by_error, by_os):
        assert found.err.count("\n") == 1


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_what_others_have_written_commands_no_terminal(tmp_path: Path, encoding: str) -> None:
    """File names, YAML and JSON of every kind, words of the command line."""
    MACHINES["laptop_4c8t"].write(tmp_path)
    machine = str(tmp_path)
    written = {
        "pools": f"pools:\n  exclusive_{EVIL}: {{cpus: '2'}}\n  default: {{cpus: x{EVIL}}}\n",
        "escaped": 'pools:\n  "x\\e]0;owned\\a\\u202e": {cpus: "\\e[2J", "\\r": 1}\n',
        "good": "pools:\n  exclusive_a: {cpus: '2'}\n  default: {cpus: 0-1}\n",
        "pod": 'kind: Pod\nmetadata: {name: "x\\e]0;owned\\a\\n",'
        ' annotations: {nokia.k8s.io/cpus: "\\e\\a"}}\n'
        'spec: {containers: [{name: "\\e", command: ["\\u202e", "a\\u2028\\nb"],'
        " resources: {requests: {nokia.k8s.io/exclusive_a: 1}}}]}\n",
        "denied": 'kind: Pod\nmetadata: {name: "x\\e]0;owned\\a"}\nspec: {containers: [{name: a,'
        ' resources: {requests: {"nokia.k8s.io/exclusive_\\e\\a": "\\a"}}}]}\n',
        "trace": f'{{"at_s": 0, "pod": "a/{EVIL}"}}\n',
        "load": f"time_s,{EVIL}\n0,{EVIL}\n",
        "simulation": '{"schema": "cpupool-simulation/1", "policies": {"\\u001b\\u0007": 1}}',
        "more": '{"schema": "cpupool-pools/1", "pools": [{"pool": "\\u001b]0;owned\\u0007",'
        ' "cpus": "", "why": "a\\nb"}]}',
        "profile": 'kind: PerformanceProfile\nmetadata: {name: "\\e"}\n'
        'spec: {cpu: {isolated: "\\e"}}\n',
        "kubelet": 'kind: KubeletConfiguration\ncpuManagerPolicy: "\\e\\a"\n',
    }
    path = {}
    for name, text in written.items():
        file = tmp_path / f"{name}{NAME}\n"
        file.write_text(text, errors="replace")
        path[name] = str(file)
    on = ("--topology", machine)
    gone = f"/{NAME}/\n"
    for arguments in (
        ["validate", path["pools"], path["escaped"], path["good"], path["denied"]],
        ["validate", path["good"], "--node-labels", f"a={NAME}"],
        ["validate", gone],
        *(
            ["admit", path[each], *more]
            for each in written
            for more in ([], ["--diff"], ["--json"])
        ),
        ["admit", path["pod"], path["good"]],
        ["kubelet-config", path["good"], *on],
        ["kubelet-config", path["good"], *on, "--check", path["kubelet"]],
        ["kubelet-config", path["escaped"], *on],
        ["import", "performance-profile", path["profile"], *on],
        ["import", NAME, path["profile"]],
        ["simulate", path["good"], *on, "--pods", path["denied"]],
        ["simulate", path["good"], *on, "--trace", path["trace"]],
        ["simulate", path["good"], *on, "--load-trace", path["load"]],
        ["topology", *on, "--pools", path["pools"]],
        ["topology", "--topology", gone],
        ["topology", *on, "--nrt", "--node-name", NAME],
        ["explain", "x", "--file", path["simulation"]],
        ["explain", NAME, "--file", path["good"]],
        ["explain", "--pools", path["more"]],
        ["doctor", "--bundle", path["good"]],
        ["doctor", "--host-root", gone],
        ["support-bundle", "--output", gone],
        ["status", "--kubeconfig", path["good"], "--node", NAME],
        ["demo", "--config", path["escaped"]],
        [NAME],
        ["status", NAME],
        ["status", f"--{NAME}"],
    ):
        for colours in (False, True):
            found = printed(*arguments, colours=colours, encoding=encoding)
            found.check(colours=colours)
            assert found.out + found.err


def test_a_node_whose_every_text_is_evil_is_examined(tmp_path: Path) -> None:
    node = WrittenNode(tmp_path / "node")
    evil = statuses.with_value(statuses.document(), ("plugins", 0, "why"), EVIL)
    evil["lost"] = evil["plugin_folders"] = [EVIL]
    evil["node_resources"][0] |= {"why": EVIL, "remedy": EVIL, "resource": EVIL}
    evil["containers"][0] |= {"name": EVIL, "reason": EVIL, "found": "0-3"}
    node.put("run/cpupool/status.json", json.dumps(evil))
    node.put("etc/cpu-pooler/poolconfig-b.yaml", f"pools: {{{EVIL}: }}".encode(errors="replace"))
    node.put("var/lib/kubelet/config.yaml", f"kind: {EVIL}".encode(errors="replace"))
    node.put(
        f"proc/{DAEMON}/status",
        f"Name:\t{NAME}\nCpus_allowed_list:\t{NAME}\n".encode(errors="replace"),
    )
    bundle = str(tmp_path / f"{NAME}.tar.gz")
    where = ("--host-root", str(tmp_path / "node"), "--config", str(node.pool_files))
    for arguments in (
        ("support-bundle", *where, "--output", bundle),
        ("doctor", *where),
        ("doctor", "--bundle", bundle),
    ):
        for colours in (False, True):
            found = printed(*arguments, "--agent", NOBODY, colours=colours)
            found.check(colours=colours)
            assert SHOWN in found.out + found.err or arguments[0] == "support-bundle"


def test_a_bug_says_its_words_through_the_door() -> None:
    program = """
from cpupool import cli

def broken(_arguments):
    raise KeyError("x") from ValueError("\\x1b[2J")

cli._parser = broken
cli.run()
"""
    ended = subprocess.run(  # noqa: PLW1510 - it fails
        [sys.executable, "-c", program], capture_output=True, timeout=DEADLINE_S
    )
    assert ended.returncode == 1
    assert b"Traceback" in ended.stderr
    assert b"ValueError: \\u001b[2J" in ended.stderr
    assert b"\x1b" not in ended.stderr


def test_the_text_of_an_error_is_one_line() -> None:
    assert str(CPUPoolError("a\nb\x1b")) == r"a\u000ab\u001b"
    assert str(ConfigError([Problem("a\n", "b"), Problem("c", "d")])) == "a\\u000a; b\nc; d"
    quoted = CPUPoolError(ConfigError([Problem("a", "b"), Problem("c", "d")]))
    assert str(quoted) == "a; b\nc; d"


def test_a_closed_stream_needs_no_door() -> None:
    behind = io.StringIO()
    assert door.behind(behind) is behind
    door.tell("a\nb", behind)
    assert behind.getvalue() == "a\\u000ab\n"


@pytest.mark.parametrize(
    ("picture", "shown"),
    [
        ("plain\n", "plain\n"),
        ("\x1b[1;38;5;12;48;2;1;2;3mA\x1b[0m", "\x1b[1;38;5;12;48;2;1;2;3mA\x1b[0m"),
        ("\x1b[8mhidden\x1b[5mblinks", "\\u001b[8mhidden\\u001b[5mblinks"),
        ("\x1b[31m\x1b[2J", "\x1b[31m\\u001b[2J\x1b[0m"),
        ("\x1b[m\x1b[1;mx\x1b[999m", "\\u001b[m\\u001b[1;mx\\u001b[999m"),
    ],
)
def test_of_a_picture_only_colours_stay(picture: str, shown: str) -> None:
    out = io.StringIO()
    door.write_picture(picture, out)
    assert out.getvalue() == shown
