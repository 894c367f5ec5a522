"""What the agent counts on when it publishes the node's topology, on a real API server.

The nodes are only objects, so any cluster will do.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool.core.cpu_manager import Scope, TopologyPolicy
from cpupool.core.node_topology import Amounts, NodeTopology, TopologyManager, Zone
from cpupool.kube.client import APIError, APIServer
from cpupool.kube.kubeconfig import api_server
from cpupool.kube.node_topology import NodeTopologyObject
from cpupool.wire.node_topology import (
    ATTRIBUTES,
    GROUP,
    MANAGER,
    PLURAL,
    POLICIES,
    V1ALPHA1,
    V1ALPHA2,
    VERSIONS,
    ZONES,
    Field,
    applied,
    values,
)
from tests.e2e.cluster import kubectl, missing, patiently, read
from tests.e2e.paper import manifests, needs_controllers, paper_node, present
from tests.loops import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cpupool.wire.node_topology import Observed, Values
    from tests.e2e.paper import PaperNode

if missing(node=False):
    pytest.skip(
        f"no {' and no '.join(missing(node=False))}: needs a cluster", allow_module_level=True
    )

pytestmark = pytest.mark.timeout(900)
CRD = f"{PLURAL}.{GROUP}"
OTHER = "another-exporter"
NOTE = Field(("metadata", "annotations", "e2e.cpupool/note"))


@pytest.fixture(scope="module")
def crd() -> Iterator[bool]:
    """Return whether the CRD is the suite's own."""
    with present(manifests("topology-crd")) as new:
        patiently(lambda: served() == set(VERSIONS), served)
        yield bool(new)


@pytest.fixture
def node(crd: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaperNode]:
    with paper_node(tmp_path_factory.mktemp("node")) as made:
        yield made
        kubectl("delete", CRD, made.name, "--ignore-not-found")


@pytest.fixture
def v1alpha1_alone(crd: bool) -> Iterator[None]:
    """Let the API server serve no v1alpha2."""
    if not crd:
        pytest.skip("the cluster has the CRD already, which others may use")
    serve_v1alpha2(yes=False)
    try:
        yield
    finally:
        serve_v1alpha2(yes=True)


def served() -> set[str]:
    body = json.loads(kubectl("get", "--raw", "/apis"))
    groups = {group["name"]: group for group in body["groups"]}
    return {each["version"] for each in groups.get(GROUP, {"versions": []})["versions"]}


def serve_v1alpha2(*, yes: bool) -> None:
    names = [version["name"] for version in read("crd", CRD)["spec"]["versions"]]
    path = f"/spec/versions/{names.index(V1ALPHA2)}/served"
    patch = json.dumps([{"op": "replace", "path": path, "value": yes}])
    kubectl("patch", "crd", CRD, "--type=json", "-p", patch)
    patiently(lambda: (V1ALPHA2 in served()) == yes, served)


def admin() -> APIServer:
    return api_server(os.environ["KUBECONFIG"])


@contextmanager
def following(node: PaperNode, server: APIServer | None = None) -> Iterator[NodeTopologyObject]:
    sink = NodeTopologyObject(server or admin(), node.name, restarted=lambda *_: None)
    with running(sink.run, wake=sink.wake):
        patiently(lambda: sink.observed() is not None, lambda: "the object is not followed")
        yield sink


def topology(annotations: Mapping[str, str] | None = None) -> NodeTopology:
    zones = tuple(
        Zone(
            node,
            {
                "cpu": Amounts(16, 14, 8),
                "hugepages-2Mi": Amounts(2 << 30, 2 << 30, 2 << 30),
                "nokia.k8s.io/exclusive_fast": Amounts(8, 8, 8),
            },
            {0: 10, 1: 21},
        )
        for node in (0, 1)
    )
    manager = TopologyManager(TopologyPolicy.SINGLE_NUMA_NODE, Scope.POD)
    return NodeTopology(zones, manager, "pfp0v0011234", annotations or {})


def publish(sink: NodeTopologyObject, node: PaperNode, wanted: Values, seen: Observed) -> None:
    """Apply what no other manager has set, as the role does."""
    given = {field: value for field, value in wanted.items() if field not in seen.others}
    sink.apply(node.uid, given)


def note(node: PaperNode, text: str | None) -> None:
    """Write an annotation as a program does that knows only v1alpha1, as koordlet."""
    older = body(node, V1ALPHA1)
    older["metadata"]["annotations"] = {} if text is None else {NOTE.name: text}
    kubectl("replace", f"--field-manager={OTHER}", "-f", "-", given=older)


def without(given: Values, *names: str) -> Values:
    return {field: value for field, value in given.items() if field.name not in names}


def body(node: PaperNode, version: str = V1ALPHA2) -> Any:
    return read(f"{PLURAL}.{version}.{GROUP}", node.name, "--show-managed-fields")


def await_object(sink: NodeTopologyObject, shows: Callable[[Observed], object]) -> Observed:
    """Return the object once it is there and shows this."""
    patiently(lambda: any(map(shows, sink.observed() or ())), sink.observed)
    (found,) = sink.observed() or ()
    return found


def by_another(node: PaperNode, given: Values, *command: str, version: str = V1ALPHA2) -> None:
    """Write the object as another manager."""
    document = applied(node.name, node.uid, version, given)
    kubectl(*command, f"--field-manager={OTHER}", "-f", "-", given=document)


def test_the_object_is_in_both_versions_what_was_applied(node: PaperNode) -> None:
    with following(node) as sink:
        assert sink.observed() == ()
        wanted = values(replace(topology({NOTE.name: "1"}), labels={"tier": "a"}), sink.version)

        sink.apply(node.uid, wanted)

        await_object(sink, lambda seen: seen.shows(node.name, node.uid, wanted))
    newer, older = (body(node, version) for version in VERSIONS)
    for field, value in wanted.items():
        assert field.of(newer) == value
        assert field.of(older) == (None if field.name == ATTRIBUTES else value)
    assert newer["metadata"]["ownerReferences"] == older["metadata"]["ownerReferences"]


def test_the_same_again_is_no_write(node: PaperNode) -> None:
    with following(node) as sink:
        wanted = values(topology(), sink.version)
        sink.apply(node.uid, wanted)
        before = body(node)["metadata"]

        sink.apply(node.uid, wanted)

    assert body(node)["metadata"] == before


def test_v1alpha1_is_written_where_it_is_alone_and_v1alpha2_after_that(
    node: PaperNode, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("v1alpha1_alone")
    with following(node) as sink:
        assert sink.version == V1ALPHA1
        older = values(topology(), sink.version)
        sink.apply(node.uid, older)
        await_object(sink, lambda seen: seen.shows(node.name, node.uid, older))
    serve_v1alpha2(yes=True)

    with following(node) as sink:
        assert sink.version == V1ALPHA2
        newer = values(topology(), sink.version)
        seen = await_object(sink, lambda seen: seen.ours)
        publish(sink, node, newer, seen)
        seen = await_object(sink, lambda seen: not seen.others)
        publish(sink, node, newer, seen)
        await_object(sink, lambda seen: seen.shows(node.name, node.uid, newer))

    (entry,) = body(node)["metadata"]["managedFields"]
    assert (entry["manager"], entry["apiVersion"]) == (MANAGER, f"{GROUP}/{V1ALPHA2}")


def test_a_writer_of_v1alpha1_takes_the_attributes_away_until_it_has_set_nothing(
    node: PaperNode,
) -> None:
    with following(node) as sink:
        wanted = values(topology(), sink.version)
        sink.apply(node.uid, wanted)
        await_object(sink, lambda seen: seen.shows(node.name, node.uid, wanted))

        note(node, "theirs")

        assert ATTRIBUTES not in body(node)
        seen = await_object(sink, lambda seen: seen.others)
        assert seen.others.keys() == {NOTE, Field((ATTRIBUTES,))}
        # Where this passes, the agent need not leave them out.
        with pytest.raises(APIError, match="field not declared in schema"):
            sink.apply(node.uid, wanted)
        publish(sink, node, wanted, seen)
        fewer = without(wanted, ATTRIBUTES)
        await_object(sink, lambda seen: seen.shows(node.name, node.uid, fewer))

        note(node, None)

        publish(sink, node, wanted, await_object(sink, lambda seen: not seen.others))
        await_object(sink, lambda seen: seen.shows(node.name, node.uid, wanted))


@pytest.mark.parametrize(
    "command", [("create",), ("apply", "--server-side")], ids=["update", "apply"]
)
def test_zones_of_another_manager_are_refused_to_the_agent_until_the_object_is_gone(
    node: PaperNode, command: tuple[str, ...]
) -> None:
    with following(node) as sink:
        wanted = values(topology(), sink.version)
        theirs = {Field((ZONES,)): [{"name": "node-0", "type": "Node"}]}
        by_another(node, theirs, *command)
        seen = await_object(sink, lambda seen: seen.others)
        assert seen.others == {Field((ZONES,)): OTHER}

        with pytest.raises(APIError) as refusal:
            sink.apply(node.uid, wanted)
        assert (refusal.value.status, refusal.value.reason) == (409, "Conflict")
        assert OTHER in str(refusal.value)

        sink.apply(node.uid, without(wanted, ZONES))
        assert body(node)[ZONES] == theirs[Field((ZONES,))]
        await_object(sink, lambda seen: seen.shows(node.name, node.uid, without(wanted, ZONES)))

        kubectl("delete", CRD, node.name)
        patiently(lambda: sink.observed() == (), sink.observed)
        sink.apply(node.uid, wanted)
        seen = await_object(sink, lambda seen: seen.shows(node.name, node.uid, wanted))
        assert not seen.others


def test_what_two_managers_set_alike_stays_when_one_gives_it_up(node: PaperNode) -> None:
    with following(node) as sink:
        wanted = values(topology(), sink.version)
        sink.apply(node.uid, wanted)
        shared = {field: value for field, value in wanted.items() if field.name == ZONES}
        by_another(node, {**shared, NOTE: "1"}, "apply", "--server-side")
        await_object(sink, lambda seen: ZONES in {field.name for field in seen.others})

        by_another(node, {NOTE: "1"}, "apply", "--server-side")

        seen = await_object(sink, lambda seen: seen.others.keys() == {NOTE})
        assert seen.shows(node.name, node.uid, wanted)


def test_zones_taken_by_force_are_the_others(node: PaperNode) -> None:
    with following(node) as sink:
        wanted = values(topology(), sink.version)
        sink.apply(node.uid, wanted)
        theirs = {Field((ZONES,)): [{"name": "node-0", "type": "Node"}]}
        by_another(node, theirs, "apply", "--server-side", "--force-conflicts")

        seen = await_object(sink, lambda seen: seen.others)

        assert seen.ours == wanted.keys() - theirs.keys()
        with pytest.raises(APIError, match="409 Conflict"):
            sink.apply(node.uid, wanted)


def test_a_field_that_is_left_out_is_gone(node: PaperNode) -> None:
    with following(node) as sink:
        sink.apply(node.uid, values(topology({NOTE.name: "1"}), sink.version))
        assert NOTE.of(body(node)) == "1"

        fewer = without(values(topology(), sink.version), POLICIES)
        sink.apply(node.uid, fewer)

        assert NOTE.of(body(node)) is None
        assert POLICIES not in body(node)
        await_object(sink, lambda seen: seen.shows(node.name, node.uid, fewer))


def test_the_object_goes_with_its_node(node: PaperNode) -> None:
    needs_controllers("deletes what a deleted Node owns")
    with following(node) as sink:
        wanted = values(topology(), sink.version)
        sink.apply(node.uid, wanted)
        await_object(sink, lambda seen: seen.shows(node.name, node.uid, wanted))

        kubectl("delete", "node", node.name)

        patiently(lambda: sink.observed() == (), sink.observed)
