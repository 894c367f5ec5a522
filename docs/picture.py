"""Draw the pictures of the README, and the house: `make picture`, or `python -m docs.picture`.

The machine is synthesised, the node is the embedded one: its kubelet, its agent and its cgroups (in
a folder) are at work while the picture is taken.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from cpupool.agent.setup import Setup
from cpupool.cli import main
from cpupool.commands.demo import manifests
from cpupool.commands.demo.live import LiveNode
from cpupool.commands.pictures import drawing
from cpupool.commands.shell.options import node_labels
from cpupool.config import poolconfig
from cpupool.core.names import Names
from cpupool.local.cgroups import EmulatedCgroups
from docs import house
from tests.machines import MACHINES

HERE = Path(__file__).parent
CONFIGMAP = HERE.parent / "configmaps/cpu-pooler-configmap.yaml"
LABELS = "cpupool.io/profile=telco"
REQUESTS = {
    "upf": {"exclusive_dpdk": 2, "shared_control": 500},
    "vran": {"exclusive_vran": 2},
    "amf": {"shared_control": 1500},
    "media": {"exclusive_dpdk": 4, "shared_media": 800},
}


def draw(folder: Path) -> None:
    """Draw the pools of a machine, and a node with pods on them."""
    machine = MACHINES["telco_2s_2n_16c32t"].write(folder)
    main(
        [
            *("topology", "--topology", str(folder), "--pools", str(CONFIGMAP)),
            *("--node-labels", LABELS, "--svg", str(HERE / "images/topology.svg")),
        ]
    )
    names = Names()
    config = folder / "etc"
    config.mkdir()
    for source in poolconfig.sources(str(CONFIGMAP), CONFIGMAP.read_text(), []):
        (config / source.name).write_text(str(source.text))
    setup = Setup(config)
    with (
        EmulatedCgroups(folder, machine.topology().online, "for a picture") as place,
        LiveNode(folder, place, setup, node_labels(LABELS), machine.sys) as live,
    ):
        list(live.await_pools())
        for name, pools in REQUESTS.items():
            live.run_pod(manifests.pod(name, [manifests.container("main", names, pools)]))
        picture = drawing.node_status(machine.topology(), live.status())
    drawing.export_svg(picture, HERE / "images/status.svg", "cpupool status")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cpl-") as name:
        draw(Path(name))
    house.write()
