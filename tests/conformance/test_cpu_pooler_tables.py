"""What CPU-Pooler makes of its own tests' inputs, beside what cpupool makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cpupool.config import pool_selection, poolconfig
from cpupool.core.devices import AllocatedDevices
from cpupool.core.errors import ConfigError, Problem, errors_in
from cpupool.core.names import Names
from cpupool.core.workloads import ContainerID, ContainerRef, PodUID
from cpupool.kube import views
from cpupool.manager.manager import Manager
from cpupool.webhook.admission import annotation
from cpupool.webhook.admission.review import answer
from cpupool.webhook.admission.rules import Rules
from tests import builders, testdata
from tests.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.requests import Resource

TABLES = yaml.safe_load((Path(__file__).parents[1] / "data/cpu_pooler.yaml").read_text())
UID = PodUID("pod-uid")
IN_TWO_POOLS = (b"9-12,15,17", b"9-11,15,17")
"""One of CPU-Pooler's files lists CPU 12 in two pools, which cpupool refuses: read without it."""

Facts = dict[str, Any]


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        pytest.param(table, facts, id=f"{table}: {facts['name']}")
        for table, listed in TABLES.items()
        for facts in listed
    ],
)
def test_cpupool_does_what_the_table_says(table: str, facts: Facts) -> None:
    result = {
        "annotations": annotation_of,
        "pool_files": pool_file_of,
        "reviews": review_of,
        "cpusets": cpusets_of,
    }[table]
    if table == "cpusets":
        ours = {name: one["ours"] for name, one in facts["containers"].items()}
        assert result(facts) == ours
    else:
        assert facts["ours"] in str(result(facts))


def differs(table: str, facts: Facts) -> bool:
    """Return whether CPU-Pooler's outcome is another one; every refusal is one outcome."""
    if table == "cpusets":
        return any(one["theirs"] != one["ours"] for one in facts["containers"].values())
    good = {"taken", "allowed", "none", *facts.get("files", ())}
    theirs, ours = (
        facts[side] if facts[side] in good else "refused" for side in ("theirs", "ours")
    )
    return bool(theirs != ours)


@pytest.mark.parametrize("table", TABLES)
def test_each_difference_has_its_reason(table: str) -> None:
    unlike = [facts["name"] for facts in TABLES[table] if differs(table, facts)]
    assert unlike == [facts["name"] for facts in TABLES[table] if "why" in facts]


def annotation_of(facts: Facts) -> object:
    problems: list[Problem] = []
    found = annotation.parse(facts["text"], "", problems)
    if refused := errors_in(problems):
        return refused[0]
    assert found
    return "taken"


def pool_file_of(facts: Facts) -> object:
    data = {
        key: json.dumps({"pools": {"shared-a": {"cpus": "1"}}, "nodeSelector": selector})
        for key, selector in facts["files"].items()
    }
    manifest = json.dumps({"kind": "ConfigMap", "data": data})
    problems: list[Problem] = []
    sources = poolconfig.sources("map", manifest, problems)
    files = poolconfig.parse_all(sources, Names(), problems)
    assert errors_in(problems) == []
    try:
        taken = pool_selection.select(files, facts["labels"])
    except ConfigError as error:
        return error
    return taken.name if taken else "none"


def review_of(facts: Facts) -> object:
    document = json.loads((testdata.folder() / "cpu-pooler" / facts["name"]).read_text())
    response = answer({**document, "apiVersion": "admission.k8s.io/v1"}, Rules())["response"]
    return "allowed" if response["allowed"] else response["status"]["message"]


def cpusets_of(facts: Facts) -> object:
    text = (testdata.folder() / "cpu-pooler" / facts["file"]).read_bytes()
    file = poolconfig.parse(facts["file"], text.replace(*IN_TWO_POOLS), Names())
    node = Manager(Names())
    node.reconfigure(file.pools, Machine(cores=40, threads=2).topology())
    containers: dict[str, Facts] = facts["containers"]
    node.observe(pods=[] if "unlisted" in facts else [views.pod(body_of(facts), Names())])
    node.accept({ContainerRef(UID, name): dict(grants_of(one)) for name, one in containers.items()})
    _, resolution = node.snapshot()
    return {
        name: str(resolution.assignment((UID, ContainerID(f"{name}-id"))).cpus)
        for name in containers
    }


def grants_of(container: Facts) -> Iterator[tuple[Resource, AllocatedDevices]]:
    """Name what the kubelet gave: the ids of the checkpoint, and milli-CPUs that say nothing."""
    if "ids" in container:
        yield (
            builders.resource("exclusive_caas"),
            AllocatedDevices(frozenset(map(str, container["ids"]))),
        )
    if "shared_caas" in container["requests"]:
        yield builders.resource("shared_caas"), AllocatedDevices(frozenset({"0"}))


def body_of(facts: Facts) -> dict[str, Any]:
    """Make the pod, with the status that names its containers' ids."""
    statuses = [
        {"name": name, "containerID": f"docker://{name}-id"}
        for name in facts["containers"]
        if "unnamed" not in facts
    ]
    listed = [
        {
            "name": name,
            "resources": {
                "requests": {f"nokia.k8s.io/{pool}": n for pool, n in one["requests"].items()}
            },
        }
        for name, one in facts["containers"].items()
    ]
    return {
        "metadata": {"name": "pod", "uid": str(UID)},
        "spec": {"containers": listed},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }
