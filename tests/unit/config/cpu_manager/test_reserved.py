"""`cpuManager.reserved` in the kubelet's spellings: the answer says what to write instead."""

from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from tests.unit.config.poolconfig.files import parse, refused

PLACE = "a.yaml:3:13: cpuManager.reserved: "
FORM = "write how many CPUs, as 2, or a CPU list, as 0-1,32-33; 2-2 is CPU 2 alone"
INSTEAD_OF_ZERO = (
    'write reserved: 0-0 for CPU 0, which the kubelet\'s reservedSystemCPUs spells "0", or how many'
    " CPUs, 1 or more"
)


def said(written: str, policy: str = "static") -> str:
    (problem,) = refused(f"cpuManager:\n  policy: {policy}\n  reserved: {written}\n")
    return problem.removeprefix(PLACE)


@pytest.mark.parametrize("policy", ["static", "dynamic", "koordinator", "qrm"])
@pytest.mark.parametrize(("written", "shown"), [("0", "0"), ('"0"', "0"), ("00", "00")])
def test_zero_is_cpu_0_or_no_cpu(written: str, shown: str, policy: str) -> None:
    what = f"{shown!r} is not a number of CPUs from 1 to 999999999"
    assert said(written, policy) == f"{what}; {INSTEAD_OF_ZERO}"


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("1500m", "write reserved: 2, the next whole number"),
        ('"1500m"', "write reserved: 2, the next whole number"),
        ("1.5", "write reserved: 2, the next whole number"),
        ("2000m", "write reserved: 2, the next whole number"),
        ("500m", "write reserved: 1, the next whole number"),
        ("1k", "write reserved: 1000, the next whole number"),
        ("cpu=1500m,memory=1Gi", "write reserved: 2, the next whole number"),
        ("memory=1Gi,cpu=250m", "write reserved: 1, the next whole number"),
        ("0m", INSTEAD_OF_ZERO),
    ],
)
def test_an_amount_of_cpu_is_rounded_up_to_whole_cpus(written: str, remedy: str) -> None:
    shown = written.strip('"')
    what = f"{shown!r} is an amount of cpu, and only whole CPUs can be kept"
    assert said(written) == f"{what}; {remedy}"


@pytest.mark.parametrize(
    ("amount", "remedy"),
    [
        ("1500m", "write reserved: 2, the next whole number"),
        ('"2"', "write reserved: 2, the next whole number"),
        ("0", INSTEAD_OF_ZERO),
        ("-1", FORM),
        ("much", FORM),
    ],
)
def test_the_map_of_kubereserved_is_no_number(amount: str, remedy: str) -> None:
    what = "this is a number of CPUs or a CPU list, and no map of amounts as in kubeReserved"
    assert said(f"{{cpu: {amount}, memory: 1Gi}}") == f"{what}; {remedy}"


@pytest.mark.parametrize("written", ["-1", "x", "0-", "1e12", "memory=1Gi"])
def test_what_is_neither_list_nor_amount_gets_the_form(written: str) -> None:
    assert f"{written!r} is not a CPU list: " in said(written)
    assert said(written).endswith(FORM)


@pytest.mark.parametrize("written", ["0-0", '"0-0"'])
def test_what_the_answer_says_is_taken(written: str) -> None:
    manager = parse(f"cpuManager:\n  policy: static\n  reserved: {written}\n").pools.cpu_manager
    assert manager.reserved == CPUSet.of(0)
