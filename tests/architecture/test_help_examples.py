"""Every example of every `--help` is a command line that works."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
from contextlib import redirect_stdout
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cpupool import cli
from cpupool.commands.shell.exit_codes import BAD_INPUT
from cpupool.host.pool_files import read_pool_files
from tests.profiles import EXAMPLE as PROFILE

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main}]}\n"
KUBELET = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
OFFLINE = {"admit", "import", "kubelet-config", "simulate", "topology", "validate"}
"""The commands that need neither a node nor an API server."""
FILES = {
    "poolconfig-dpdk.yaml": "pools: {shared_a: {cpus: 0}}\nnodeSelector: {nodeType: dpdk}\n",
    "poolconfig-controller.yaml": "pools: {default: {cpus: 0}}\n",
    "pools.yaml": "pools: {shared_a: {cpus: 0}}\n",
    "resource-plugins.yaml": "reserved: 0\npools: {online: {weight: 1}}\n",
    "pod.yaml": POD,
    "deployment-pods.yaml": POD,
    "cpu-test.yaml": POD,
    "profile.yaml": PROFILE,
    "kubelet.yaml": KUBELET,
    "config.yaml": KUBELET,
    "kubelet.conf": KUBELET,
}
COPIES = {
    "recorded.tar.gz": "machine.tar.gz",
    "week.jsonl": "trace.jsonl",
    "load.csv": "load.csv",
    "cpu-manager.yaml": "cpu-manager.yaml",
}


def printed_help(command: str) -> str:
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        cli.main([command, "--help"])
    return out.getvalue()


def examples() -> Iterator[tuple[str, list[str]]]:
    """Give the examples, each with the command that shows it."""
    for command in cli.COMMANDS:
        shown = printed_help(command).partition("\nexamples:\n")[2].partition("\n\n")[0]
        for line in re.sub(r"\\\n *", "", shown).splitlines():
            # A remark stands behind several spaces.
            lexer = shlex.shlex(
                re.sub(r"(?<=\S) {2,}.*", "", line), posix=True, punctuation_chars="|&>"
            )
            lexer.whitespace_split = True
            words = [";" if word.strip("|&>") == "" else word for word in lexer]
            for place, (before, word) in enumerate(pairwise([";", *words])):
                if before in {";", "--"} and word == "cpupool":
                    yield command, list(takewhile(lambda each: each != ";", words[place + 1 :]))


EXAMPLES: Final = tuple(examples())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with all that the examples name."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name, example in COPIES.items():
        shutil.copy(ROOT / "examples/simulate" / example, tmp_path / name)
    shutil.copytree(ROOT / "configmaps", tmp_path / "configmaps")
    (tmp_path / "kubelet.conf.d").mkdir()
    pools = tmp_path / "cpu-pooler"
    pools.mkdir()
    shutil.copy(tmp_path / "poolconfig-dpdk.yaml", pools)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(KUBELET.encode())))
    return tmp_path


def test_every_command_has_examples() -> None:
    assert {command for command, _ in EXAMPLES} == cli.COMMANDS.keys()


@pytest.mark.parametrize("words", [words for _, words in EXAMPLES], ids=shlex.join)
def test_an_example_works(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    # What lies in the system's folders lies here, and this machine may have few CPUs.
    words = [Path(word).name if word.startswith("/") else word for word in words]
    words = ["recorded.tar.gz" if word == "this" else word for word in words]
    if "--record" in words:
        Path("recorded.tar.gz").unlink()
    parsed = cli._parser(words).parse_args(words)

    if words[0] in OFFLINE:
        assert cli.main(words) != BAD_INPUT, capfd.readouterr().err
    if words[0] == "resource-plugin":
        assert parsed.config.name == "resource-plugins.yaml"


def test_the_webhooks_folder_has_pool_files(folder: Path) -> None:
    lines = re.findall(r"^  (mkdir .*)", printed_help("webhook"), re.MULTILINE)
    for line in lines:
        subprocess.run(["bash", "-c", line], cwd=folder, check=True)
    named = [words for command, words in EXAMPLES if command == "webhook" and "--config" in words]
    assert named
    for words in named:
        assert read_pool_files(cli._parser(words).parse_args(words).config)
