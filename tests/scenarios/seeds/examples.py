"""The seeds' examples, which stand here word for word, and what is made of them."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpupool.agent.setup import Setup
from cpupool.commands.demo.live import LiveNode
from cpupool.config import poolconfig
from cpupool.local.cgroups import EmulatedCgroups
from tests import pods

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.kube.views import Body
    from tests.machines import Machine

SEEDS = Path(__file__).parent


def text(example: str) -> str:
    """Return an example, by its document and its file."""
    return (SEEDS / example).read_text()


def pod(example: str) -> Body:
    """Return the only pod of an example."""
    (body,) = pods.bodies(example, text(example))
    return body


def values(example: str) -> Any:
    """Read JSON as its author means it: with comments, and with a comma or a quote too many."""
    meant = re.sub(r"\s//.*", "", text(example))
    meant = re.sub(r'(?<=\w)""', '"', meant)
    return json.loads(re.sub(r",(?=\s*[}\]])", "", meant))


@contextmanager
def node(
    folder: Path, machine: Machine, pools: str, labels: Mapping[str, str] | None = None
) -> Iterator[LiveNode]:
    """Run a node whose runtime asks the agent, with the pool files of an example."""
    written, config = machine.write(folder), folder / "config"
    config.mkdir()
    for source in poolconfig.sources("poolconfig-node.yaml", text(pools), []):
        (config / source.name).write_text(str(source.text))
    with (
        EmulatedCgroups(folder, written.topology().online, "a test") as place,
        LiveNode(folder, place, Setup(config), labels or {}, written.sys, nri=True) as live,
    ):
        live.await_plugin()
        yield live


def placed(live: LiveNode) -> dict[str, str]:
    """Return the CPUs of each container, once all are where they belong."""
    containers = {each.name.removeprefix("default/"): each for each in live.status().containers}
    return {name: each.found for name, each in containers.items() if "/" in name}
