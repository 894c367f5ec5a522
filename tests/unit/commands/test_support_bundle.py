from __future__ import annotations

import errno
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from tests.nodes import OTHER, POOL_FILE, AnsweringAgent, WrittenNode, container
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def node(folder: Path) -> WrittenNode:
    return WrittenNode(folder / "node")


def bundle(node: WrittenNode, output: Path | str, *options: str) -> int:
    return cli.main(
        [
            *("support-bundle", "--host-root", str(node.folder), "--output", str(output)),
            *("--config", str(node.pool_files), "--agent", NOBODY, *options),
        ]
    )


def doctor(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[dict[str, Any]]]:
    capsys.readouterr()
    code = cli.main(["doctor", "--json", "--agent", NOBODY, *options])
    return code, json.loads(capsys.readouterr().out)["checks"]


@pytest.mark.parametrize("astray", [False, True])
def test_the_bundle_is_judged_as_the_node_is(
    node: WrittenNode, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, astray: bool
) -> None:
    if astray:
        node.container(OTHER, "4")
        node.interrupt("0-31", "4")
        node.daemon("0-31")
        node.put("sys/devices/system/cpu/isolated", "2-4")
        node.put("var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n")
        node.status(container("ns/owner/main", "4", "0-31"))
    assert bundle(node, tmp_path / "b.tar.gz") == 0
    live = ["--host-root", str(node.folder), "--config", str(node.pool_files)]

    _, here = doctor(capsys, *live)
    code, there = doctor(capsys, "--bundle", str(tmp_path / "b.tar.gz"))

    def judged(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
        asked = ("device plugins", "podresources", "starter", "container runtime")
        return [(row["check"], row["verdict"]) for row in rows if row["check"] not in asked]

    assert judged(there) == judged(here)
    assert code == astray
    assert [row["fact"] for row in there if row["verdict"] == "unseen"][-4:] == [
        "not in a bundle"
    ] * 4
    # Files are called as on the node, not as where they were unpacked.
    assert str(tempfile.gettempdir()) not in json.dumps(there)


def test_it_says_what_is_in_it_and_no_other_user_may_read_it(
    node: WrittenNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "b.tar.gz"

    assert bundle(node, output) == 0

    said = capsys.readouterr().out
    assert f"{output}: " in said
    assert "left out: the agent gives no answer at http://127.0.0.1:9/readyz" in said
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    with tarfile.open(output) as archive:
        contents = json.load(archive.extractfile("bundle.json"))  # type: ignore[arg-type]
        names = [member.name for member in archive if member.isreg()]
    assert [name for name in contents["files"] if not name.endswith("/")] == [
        name for name in names if name != "bundle.json"
    ]


def test_what_the_agent_answers_is_in_it(
    node: WrittenNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with AnsweringAgent() as agent:
        agent.health.set("kubelet", ok=False, message="it is not there; start it")
        agent.metrics.watch_restarted("pods", "403")
        bundle(node, tmp_path / "b.tar.gz", "--agent", agent.url)

    _, rows = doctor(capsys, "--bundle", str(tmp_path / "b.tar.gz"))

    facts = {row["check"]: row["fact"] for row in rows}
    assert facts["agent"] == "kubelet: it is not there"
    assert facts["rights"] == "the API server has refused the agent: pods"


def test_a_bundle_that_cannot_be_finished_is_removed(
    node: WrittenNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)

    assert bundle(node, tmp_path / "b.tar.gz") == 1

    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_log_can_come_from_a_pipe(node: WrittenNode, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(pipe.write_bytes, b"an old line\n" * 800_000 + b"the last line\n")
        assert bundle(node, tmp_path / "b.tar.gz", "--log", str(pipe)) == 0
        written.result(DEADLINE_S)

    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        kept = archive.extractfile("agent/log")
        assert kept is not None
        lines = kept.read()
    assert lines.endswith(b"an old line\nthe last line\n")
    assert len(lines) == 8 * 2**20


def test_no_secret_is_in_it(node: WrittenNode, tmp_path: Path) -> None:
    log = node.put("agent.log", "a line of the log\n")

    bundle(node, tmp_path / "b.tar.gz", "--log", str(log))

    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        content = {
            member.name: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive
            if member.isreg()
        }
    assert not [name for name, text in content.items() if b"swordfish" in text]
    assert content["proc/cmdline"] == b"isolcpus=4-7 nohz_full=4-7"
    assert content["agent/log"] == b"a line of the log\n"
    assert b"exclusive_a" in content["var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"]
    assert b"gpu" not in content["var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"]


def test_nothing_is_overwritten(
    node: WrittenNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "b.tar.gz"
    bundle(node, output)
    before = output.read_bytes()

    assert bundle(node, output) == 2

    assert "is there already" in capsys.readouterr().err
    assert output.read_bytes() == before


def test_standard_output_carries_the_bundle_alone(
    node: WrittenNode, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert bundle(node, "-") == 0

    with tarfile.open(fileobj=io.BytesIO(capsysbinary.readouterr().out)) as archive:
        assert "sys/devices/system/cpu/online" in archive.getnames()


@pytest.mark.parametrize("option", ["--bundle", "--kubelet-config"])
def test_doctor_takes_standard_input_for_a_file(
    option: str, node: WrittenNode, tmp_path: Path
) -> None:
    assert bundle(node, tmp_path / "b.tar.gz") == 0
    static = b"kind: KubeletConfiguration\ncpuManagerPolicy: static\n"
    piped = (tmp_path / "b.tar.gz").read_bytes() if option == "--bundle" else static

    result = subprocess.run(
        [
            *(sys.executable, "-m", "cpupool", "doctor", "--json", "--agent", NOBODY),
            *("--host-root", str(node.folder), option, "-"),
        ],
        input=piped,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )

    rows = json.loads(result.stdout)["checks"]
    facts = [row["fact"] for row in rows]
    assert ("not in a bundle" in facts) == (option == "--bundle")
    assert any("'static'" in fact for fact in facts) == (option == "--kubelet-config")


def test_a_closed_standard_output_takes_no_bundle(
    node: WrittenNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)

    assert bundle(node, "-") == 2
    assert "standard output is closed" in capsys.readouterr().err


def test_what_the_command_line_names_takes_the_place_of_what_is_in_the_bundle(
    node: WrittenNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundle(node, tmp_path / "b.tar.gz") == 0
    kubelet = node.put("kubelet.yaml", "kind: KubeletConfiguration\ncpuManagerPolicy: static\n")
    pools = node.put("pools.yaml", POOL_FILE.replace("4-7", "4-9"))

    named = ("--kubelet-config", str(kubelet), "--config", str(pools))
    _, rows = doctor(capsys, "--bundle", str(tmp_path / "b.tar.gz"), *named)

    facts = {row["check"]: row["fact"] for row in reversed(rows)}
    assert facts["kubelet"].startswith(f"{kubelet}:")
    assert "says something else" in facts["pool file"]


def test_what_cannot_be_read_is_left_out_and_said(
    node: WrittenNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.put("var/lib/kubelet/config.yaml", "kind: Pod\n")
    node.root.checkpoint.write_text("damaged swordfish")
    node.root.status.unlink()
    node.root.status.mkdir()

    assert bundle(node, tmp_path / "b.tar.gz") == 0

    said = capsys.readouterr().out
    assert "left out: var/lib/kubelet/config.yaml: " in said
    assert "left out: run/cpupool/status.json: Is a directory" in said
    assert "kubelet_internal_checkpoint: the kubelet's device checkpoint is not readable" in said


def test_a_machine_is_drawn_from_it(node: WrittenNode, tmp_path: Path) -> None:
    bundle(node, tmp_path / "b.tar.gz")

    assert cli.main(["topology", "--topology", str(tmp_path / "b.tar.gz")]) == 0


@pytest.mark.parametrize(
    ("output", "options", "said", "code"),
    [
        ("missing/b.tar.gz", [], "cannot be written (No such file or directory)", 1),
        ("b.tar.gz", ["--log", "/no/such"], "/no/such: No such file or directory", 2),
        ("b.tar.gz", ["--kubelet-config", "/no/such"], "no such file", 2),
    ],
)
def test_bad_usage_is_one_line_and_leaves_nothing(
    node: WrittenNode,
    tmp_path: Path,
    *,
    output: str,
    options: list[str],
    said: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bundle(node, tmp_path / output, *options) == code

    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_bundle_has_what_the_agent_chose(node: WrittenNode, tmp_path: Path) -> None:
    chosen = node.put("var/lib/cpupool/cpu_manager_state", '{"policyName":"static"}')
    assert bundle(node, tmp_path / "b.tar.gz") == 0
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        kept = archive.extractfile("var/lib/cpupool/cpu_manager_state")
        assert kept is not None
        assert kept.read() == chosen.read_bytes()
