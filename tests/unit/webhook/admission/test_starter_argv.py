"""The starter's command line: what it waits for, what it starts, and how it is read back."""

from __future__ import annotations

import pytest

from cpupool.webhook.admission import starter_argv
from cpupool.webhook.admission.annotation import ContainerProcesses, ProcessSpec, Supervision
from tests.pods import expanded


def entry(*processes: ProcessSpec, supervise: Supervision | None = None) -> ContainerProcesses:
    return ContainerProcesses("main", processes, supervise)


def test_a_command_stands_behind_what_is_waited_for() -> None:
    pools = {"shared-b": 10, "exclusive-pool.2": 1, "exclusive-a": 2, "other": 1}
    assert starter_argv.for_command(pools, ["/bin/app", "--", "$(EXCLUSIVE_CPUS)"]) == [
        *("--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_A"),
        *("--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_POOL_2"),
        *("--shared", "shared-b"),
        *("--", "/bin/app", "--", "$(EXCLUSIVE_CPUS)"),
    ]


def test_processes_are_numbered_and_counted() -> None:
    processes = entry(
        ProcessSpec("/bin/one", ("--process", ""), "exclusive-a", 2),
        ProcessSpec("two", (), "shared-b", 300),
        ProcessSpec("three", ("--",), "other", 1),
        supervise=Supervision.LAST,
    )
    assert starter_argv.for_processes({"exclusive-a", "shared-b"}, processes) == [
        *("--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_A", "--shared", "shared-b"),
        *("--supervise", "last"),
        *("--process", "0:CPUPOOL_CPUS_EXCLUSIVE_A:2:3", "/bin/one", "--process", ""),
        *("--process", "1:shared:0:1", "two"),
        *("--process", "2:all:0:2", "three", "--"),
    ]


@pytest.mark.parametrize("words", [["app"], ["app", "--"], ["--", "--exclusive"], ["--shared", ""]])
def test_a_command_is_found_again(words: list[str]) -> None:
    written = starter_argv.for_command({"exclusive-a", "shared-b"}, words)
    assert starter_argv.command_in(written) == words


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="nothing"),
        pytest.param(["--"], id="no command"),
        pytest.param(["app"], id="no dashes"),
        pytest.param(["--exclusive"], id="half an option"),
        pytest.param(["--exclusive", "--", "app"], id="an option takes the dashes"),
        pytest.param(["--supervise", "any", "--", "app"], id="an option of processes"),
        pytest.param(["--process", "0:all:0:1", "app"], id="processes"),
    ],
)
def test_other_arguments_hold_no_command(arguments: list[str]) -> None:
    assert starter_argv.command_in(arguments) is None


@pytest.mark.parametrize("word", ["$(HOME)", "$$(HOME)", "$$", "$", "$é", "$(", "a$(HOME", "$HOME"])
def test_an_escaped_word_comes_out_of_the_kubelet_as_it_went_in(word: str) -> None:
    assert expanded(starter_argv.escaped(word), {"HOME": "/root"}) == word
