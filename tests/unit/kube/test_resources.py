from __future__ import annotations

import re
from pathlib import Path

import pytest

import cpupool
from cpupool.core.errors import NoObjectName
from cpupool.kube.resources import NODES, PODS, APIPath, Resource

LEASES = Resource("coordination.k8s.io", "v1", "leases")
SLICES = Resource("resource.k8s.io", "v1beta2", "resourceslices")


@pytest.mark.parametrize(
    ("path", "resource", "text"),
    [
        (NODES.collection(), "nodes", "/api/v1/nodes"),
        (PODS.collection(), "pods", "/api/v1/pods"),
        (PODS.collection("web"), "pods", "/api/v1/namespaces/web/pods"),
        (NODES.object("node-a"), "nodes", "/api/v1/nodes/node-a"),
        (PODS.object("upf", "web"), "pods", "/api/v1/namespaces/web/pods/upf"),
        (
            PODS.object("upf", "web", subresource="status"),
            "pods/status",
            "/api/v1/namespaces/web/pods/upf/status",
        ),
        (
            NODES.object("node-a", subresource="proxy/configz"),
            "nodes/proxy",
            "/api/v1/nodes/node-a/proxy/configz",
        ),
        (LEASES.collection(), "leases", "/apis/coordination.k8s.io/v1/leases"),
        (
            LEASES.object("node-a", "kube-node-lease"),
            "leases",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-a",
        ),
        (
            SLICES.object("a/../b?c"),
            "resourceslices",
            "/apis/resource.k8s.io/v1beta2/resourceslices/a%2F..%2Fb%3Fc",
        ),
    ],
)
def test_each_path_is_as_the_api_conventions_have_it(
    path: APIPath, resource: str, text: str
) -> None:
    assert path == APIPath(resource, text)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_leads_to_another_path_is_refused(name: str) -> None:
    with pytest.raises(NoObjectName) as refused:
        NODES.object(name)
    assert refused.value.name == name
    if name:
        with pytest.raises(NoObjectName):
            PODS.collection(name)


def test_no_other_file_builds_a_path_of_the_api() -> None:
    package = Path(cpupool.__file__).parent
    builds = re.compile(r"""["'](/api/v1|/apis/|api/|apis/)""")
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if builds.search(path.read_text("utf-8"))
    }

    assert found == {"kube/resources.py"}
