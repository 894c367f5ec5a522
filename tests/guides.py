"""Guides for users: their blocks of text, their calls of cpupool, and the node of their example."""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cpupool.agent.setup import Setup
from cpupool.commands.demo.live import LiveNode
from cpupool.local.cgroups import EmulatedCgroups
from tests import pods

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.machines import Machine


def blocks(guide: str, language: str) -> list[str]:
    """Return a guide's blocks of one language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", guide, re.MULTILINE | re.DOTALL)
    return [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def commands(guide: str) -> list[list[str]]:
    """Return the words of each of a guide's calls of cpupool."""
    lines = "".join(blocks(guide, "sh")).replace("\\\n", " ").splitlines()
    return [words[1:] for line in lines if (words := shlex.split(line))[:1] == ["cpupool"]]


@contextmanager
def example_node(
    folder: Path, machine: Machine, example: Path, devices: Mapping[str, int]
) -> Iterator[LiveNode]:
    """Run an example's pool file and pods on a node whose runtime asks the agent.

    Args:
        folder: the node's.
        machine: the node's.
        example: the folder of the example.
        devices: resource → how many devices the kubelet must have before the pods start.
    """
    written, config = machine.write(folder), folder / "config"
    config.mkdir()
    (config / "poolconfig-node.yaml").write_text((example / "poolconfig.yaml").read_text())
    with (
        EmulatedCgroups(folder, written.topology().online, "a test") as place,
        LiveNode(folder, place, Setup(config), {}, written.sys, nri=True) as live,
    ):
        assert dict(live.await_pools()) == devices
        live.await_plugin()
        for body in pods.bodies("pods.yaml", (example / "pods.yaml").read_text()):
            live.run_pod(body)
        yield live
