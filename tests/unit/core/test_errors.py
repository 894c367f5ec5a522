"""What problems and errors say: the place, the fact, the remedy; and one line each."""

from __future__ import annotations

import weakref

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    CgroupNotFound,
    CgroupWriteRejected,
    ConfigError,
    CPUPoolError,
    CPUSetParseError,
    HostFileError,
    Location,
    ManifestError,
    NoObjectName,
    NotEnoughDevices,
    PartitionUnsafe,
    PlacementError,
    PodRefused,
    Problem,
    QuantityError,
    Severity,
    UnknownDevices,
    errors_in,
    refuse_errors,
    without_frames,
)
from cpupool.policies.view import Refusal

ERROR = Problem("it is red", "paint it")
WARNING = Problem("it is pale", "paint it", severity=Severity.WARNING)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        pytest.param(ERROR, "it is red; paint it", id="a bare problem"),
        pytest.param(WARNING, "warning: it is pale; paint it", id="a warning says so"),
        pytest.param(
            Problem("it is red", "paint it", path="pools.a.cpus"),
            "pools.a.cpus: it is red; paint it",
            id="a path",
        ),
        pytest.param(
            Problem(
                "it is red",
                "paint it",
                severity=Severity.WARNING,
                path="pools",
                location=Location("a.yaml", 5, 27),
            ),
            "a.yaml:5:27: warning: pools: it is red; paint it",
            id="a place, a warning and a path",
        ),
        pytest.param(
            Problem("it is red", "paint it", location=Location("a.yaml")),
            "a.yaml: it is red; paint it",
            id="a whole file",
        ),
    ],
)
def test_a_problem_is_one_line(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_a_config_error_lists_every_problem() -> None:
    error = ConfigError(iter([ERROR, WARNING]))
    assert error.problems == (ERROR, WARNING)
    assert str(error) == "it is red; paint it\nwarning: it is pale; paint it"


def test_warnings_alone_are_not_refused() -> None:
    assert refuse_errors(iter([WARNING])) == (WARNING,)
    assert errors_in([WARNING]) == []


def test_one_error_refuses_everything() -> None:
    with pytest.raises(ConfigError) as raised:
        refuse_errors([WARNING, ERROR])
    assert raised.value.problems == (WARNING, ERROR)
    assert errors_in([WARNING, ERROR]) == [ERROR]


def test_places_sort_in_the_order_of_reading() -> None:
    later, earlier = Location("a", 10, 1), Location("a", 9, 30)
    assert sorted([later, earlier]) == [earlier, later]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            CPUSetParseError("1,x", "x", "is no CPU"),
            "'1,x' is not a CPU list: 'x' is no CPU",
        ),
        (QuantityError("1x", "write a number"), "'1x' is not a quantity: write a number"),
        (
            UnknownDevices("shared", "no such devices", "use others", ["a", "b"]),
            "shared: no such devices (a, b); use others",
        ),
        (
            NotEnoughDevices("exclusive", 3, 2),
            "exclusive: 3 devices requested, 2 to choose from; request fewer",
        ),
        (
            ManifestError("default/web", "spec.containers", "this must be a list"),
            "default/web: spec.containers: this must be a list",
        ),
        (ManifestError("pods.yaml", "", "this is no pod"), "pods.yaml: this is no pod"),
        (
            PodRefused("default/web", "UnexpectedAdmissionError", "no device is left"),
            "default/web: UnexpectedAdmissionError: no device is left",
        ),
        (
            NoObjectName("a/b"),
            "'a/b' is no name of an object; write it as `kubectl get` shows it",
        ),
        (
            PartitionUnsafe("/pod1/c1", CPUSet.parse("2-3")),
            (
                "/pod1/c1: unbound workqueues may run on its CPUs 2-3, and then Linux can block for"
                " ever when it makes a partition; boot with workqueue.unbound_cpus=CPUS, without"
                " the CPUs of exclusive pools"
            ),
        ),
        (HostFileError("/sys/x", "is empty", "look there"), "/sys/x: is empty; look there"),
        (CgroupNotFound("pod1/c1"), "pod1/c1: this cgroup is gone"),
        (
            CgroupWriteRejected("pod1", "0-3", 16, "it is busy"),
            "pod1: the kernel did not take '0-3': it is busy",
        ),
    ],
)
def test_an_error_says_what_failed(error: CPUPoolError, text: str) -> None:
    assert str(error) == text


def test_long_facts_are_cut() -> None:
    many = UnknownDevices("shared", "no such devices", "use others", map(str, range(11)))
    assert "(0, 1, 2, 3, 4, 5, 6, 7 and 3 more)" in str(many)
    assert len(many.ids) == 11
    assert len(str(CPUSetParseError("1," * 500, "x" * 500, "is no CPU"))) < 200


class Facts:
    """Something in a frame."""


def failing(kept: list[weakref.ref[Facts]]) -> None:
    facts = Facts()
    kept.append(weakref.ref(facts))
    raise KeyError(facts)


def raised(kept: list[weakref.ref[Facts]]) -> PlacementError:
    try:
        try:
            failing(kept)
        except KeyError as error:
            raise PlacementError("it does not fit", "as the kubelet says") from error
    except PlacementError as error:
        return error
    raise AssertionError


def test_what_keeps_an_error_keeps_no_frame() -> None:
    kept = list[weakref.ref[Facts]]()
    error = raised(kept)
    assert kept[0]()
    assert without_frames(error) is error
    assert kept[0]() is None
    assert str(error) == "it does not fit"


def test_the_state_keeps_a_refusal_without_frames() -> None:
    kept = list[weakref.ref[Facts]]()
    refusal = Refusal(raised(kept), holds=True, reachable=False)
    assert kept[0]() is None
    assert str(refusal.error) == "it does not fit"
