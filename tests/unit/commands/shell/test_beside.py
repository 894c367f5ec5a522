"""An option that would have no effect is refused, and the line says which one to leave out."""

from __future__ import annotations

import shlex

import pytest

from cpupool import cli

POOLS = "configmaps/vm-8cpu.yaml"
SIMULATE = f"simulate --pools {POOLS}"
LOAD = f"{SIMULATE} --load-trace load.csv"


@pytest.mark.parametrize(
    ("line", "option", "other"),
    [
        (f"{LOAD} --plot p.svg", "--plot", "--load-trace"),
        (f"{LOAD} --save-trace t.jsonl", "--save-trace", "--load-trace"),
        (f"{LOAD} --policy pool", "--policy", "--load-trace"),
        (f"{LOAD} --pol packed first-fit", "--policy", "--load-trace"),
        (f"{LOAD} --seed 1", "--seed", "--load-trace"),
        (f"{LOAD} --load 0.9", "--load", "--load-trace"),
        (f"{LOAD} --topology-manager none", "--topology-manager", "--load-trace"),
        (f"{SIMULATE} --trace t.jsonl --seed 1", "--seed", "--random"),
        (f"{SIMULATE} --pods p.yaml --load=0.9", "--load", "--random"),
        ("topology --node-labels a=b", "--node-labels", "--pools"),
        ("topology --resource-domain a.b", "--resource-domain", "--pools or --nrt"),
        ("topology --node-name a", "--node-name", "--nrt"),
        ("topology --kubelet-config a", "--kubelet-config", "--nrt"),
        (f"topology --pools {POOLS} --json", "--pools", "--json"),
        ("explain --pools --file a", "--file", "--pools"),
        ("explain --pools --kubeconfig k --configmap a", "--configmap", "--pools"),
        ("explain web --file a --kubeconfig b", "--file", "--kubeconfig"),
        ("explain web --file a --context b", "--file", "--context"),
        ("explain web --configmap a", "--configmap", "--kubeconfig or --context"),
        ("explain web --resource-domain a.b", "--resource-domain", "--kubeconfig or --context"),
        (f"kubelet-config {POOLS} --kubelet-config-dir a", "--kubelet-config-dir", "--check"),
        ("doctor --configmap a", "--configmap", "--kubeconfig or --context"),
        ("doctor --node-name a", "--node-name", "--kubeconfig or --context"),
        ("demo --node-labels a=b", "--node-labels", "--config"),
        ("demo --qrm --node-labels a=b", "--node-labels", "--config"),
        ("admit p.yaml --mixed-cpus-allowed", "--mixed-cpus-allowed", "--pool-files"),
        ("admit p.yaml --schedulers a", "--schedulers", "--pool-files"),
    ],
)
def test_an_option_without_effect_is_refused(
    line: str, option: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)

    assert cli.main(words) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    (said,) = printed.err.splitlines()
    assert said in {
        f"cpupool: {option} {why}; see cpupool {words[0]} --help"
        for why in (
            f"has no effect with {other}; leave one of them out",
            f"is for {other}; leave it out",
        )
    }


@pytest.mark.parametrize(
    "line",
    [
        f"topology --topology examples/simulate/machine.tar.gz --pools {POOLS} --nrt --json",
        "topology --topology examples/simulate/machine.tar.gz --nrt --resource-domain a.b",
        f"{SIMULATE} --topology examples/simulate/machine.tar.gz --random 3 --seed 2 --load 0.5",
    ],
)
def test_with_what_it_needs_it_is_taken(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(shlex.split(line)) == 0
    assert capsys.readouterr().out


def test_a_default_from_the_environment_is_not_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NODE_NAME", "node-a")

    cli.main(["doctor", "--bundle", "/no/such/file"])

    assert "--node-name" not in capsys.readouterr().err
