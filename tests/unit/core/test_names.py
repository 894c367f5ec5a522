"""The public strings: resources, annotations, variables."""

from __future__ import annotations

import pytest

from cpupool.core.names import (
    Names,
    is_reserved_variable,
    pool_variable,
    shared_pool_folder,
)


def test_a_resource_names_its_pool() -> None:
    assert Names().resource("exclusive-pool") == "nokia.k8s.io/exclusive-pool"
    assert Names("example.com").resource("shared_a") == "example.com/shared_a"
    openshifts = "workload.openshift.io/enable-shared-cpus"
    assert Names("example.com").resource("enable-shared-cpus") == openshifts


@pytest.mark.parametrize(
    ("resource", "pool"),
    [
        ("nokia.k8s.io/shared", "shared"),
        ("workload.openshift.io/enable-shared-cpus", "enable-shared-cpus"),
        ("nokia.k8s.io/enable-shared-cpus", None),
        ("nokia.k8s.io/sriov_vfio_ens1f0", None),
        ("nokia.k8s.io/default", None),
        ("nokia.k8s.io/Exclusive", None),
        ("workload.openshift.io/shared", None),
        ("nokia.k8s.io/", None),
        ("nokia.k8s.io", None),
        ("example.com/shared", None),
        ("cpu", None),
    ],
)
def test_only_our_resources_have_a_pool(resource: str, pool: str | None) -> None:
    assert Names().pool_of(resource) == pool


@pytest.mark.parametrize(
    ("resource", "doubtful"),
    [
        ("nokia.k8s.io/exlusive-pool", True),
        ("nokia.k8s.io/Exclusive_caas", True),
        ("nokia.k8s.io/share-pool", True),
        ("nokia.k8s.io/default", True),
        ("nokia.k8s.io/exclusive-pool", False),
        ("nokia.k8s.io/sriov_vfio_ens1f0", False),
        ("nokia.k8s.io/sriov_exclusive", False),
        ("nokia.k8s.io/enable-shared-cpus", False),
        ("nokia.k8.io/exclusive-pool", True),
        ("Nokia.k8s.io/shared-pool", True),
        ("workload.openshift.com/enable-shared-cpus", True),
        ("nokia.k8.io/sriov_vfio_ens1f0", False),
        ("nvidia.k8s.io/shared-gpu", False),
        ("example.com/exlusive-pool", False),
        ("exclusive-pool", False),
        ("cpu", False),
    ],
)
def test_a_name_close_to_a_pools_is_doubtful(resource: str, doubtful: bool) -> None:
    assert Names().is_doubtful(resource) == doubtful


def test_an_allocation_is_annotated_per_pool() -> None:
    assert Names("example.com").allocated("exclusive-a") == "example.com/allocated.exclusive-a"


@pytest.mark.parametrize(
    ("annotation", "pool"),
    [
        ("example.com/allocated.exclusive-a", "exclusive-a"),
        ("example.com/allocated.shared.v2", "shared.v2"),
        ("example.com/allocated.", None),
        ("example.com/allocated", None),
        ("example.com/cpus", None),
        ("nokia.k8s.io/allocated.exclusive-a", None),
        ("x/example.com/allocated.exclusive-a", None),
    ],
)
def test_only_our_annotations_have_a_pool(annotation: str, pool: str | None) -> None:
    assert Names("example.com").allocated_pool(annotation) == pool


def test_a_pools_variable_is_a_name_that_a_shell_accepts() -> None:
    assert pool_variable("exclusive-dpdk.v2_a") == "CPUPOOL_CPUS_EXCLUSIVE_DPDK_V2_A"
    assert pool_variable("enable-shared-cpus") == "OPENSHIFT_SHARED_CPUS"


def test_annotations_are_under_the_domain() -> None:
    names = Names("example.com")

    assert names.processes == "example.com/cpus"
    assert names.chosen == "example.com/cpus-chosen"
    assert names.answered == "example.com/cpus-answered"
    assert names.requests == "example.com/requests"


@pytest.mark.parametrize(
    ("variable", "reserved"),
    [
        ("EXCLUSIVE_CPUS", True),
        ("SHARED_CPUS", True),
        ("CPUPOOL_CPUS_EXCLUSIVE_A", True),
        ("CPUPOOL_ANYTHING", True),
        ("CPUPOOL_START_TIMEOUT", False),
        ("CPU_POOLS", False),
        ("CPUPOOL", False),
    ],
)
def test_a_pods_author_may_set_the_timeout_only(variable: str, reserved: bool) -> None:
    assert is_reserved_variable(variable) is reserved


def test_a_shared_pool_has_a_folder_in_its_containers() -> None:
    assert shared_pool_folder("shared-a") == "/run/cpupool/shared-a"
