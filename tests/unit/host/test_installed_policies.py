"""Which policies of packages are found, and what is said of those that cannot be used."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from cpupool.config import poolconfig
from cpupool.config.cpu_manager import Unusable
from cpupool.config.poolconfig import Source
from cpupool.core.names import Names
from cpupool.host import installed_policies
from cpupool.host.installed_policies import find_policy, installed
from tests.policies import LowestCPUs, package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.errors import Problem

CORRECT = "correct the package, or install another version of it"
MODULES = {
    "broken_policy": "import nothing_of_this_name\n",
    "strange_policy": "class Strange:\n    pass\n",
    "half_policy": (
        "from cpupool.policies.base import CPUManagerPolicy\n\n"
        "class Half(CPUManagerPolicy):\n    def requests(self, pod):\n        return {}\n"
    ),
    "leaving_policy": "import sys\n\nsys.exit(0)\n",
    "speechless_policy": (
        "class Speechless(Exception):\n    def __str__(self):\n        raise RuntimeError\n\n"
        "raise Speechless\n"
    ),
    "undescribed_policy": (
        "from tests.policies import LowestCPUs\n\n"
        "class Undescribed(LowestCPUs):\n    settings = None\n"
    ),
}


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install packages, as a process finds them that starts now."""
    package(tmp_path, "lowest", lowest="tests.policies:LowestCPUs")
    package(tmp_path, "taken", static="tests.policies:LowestCPUs")
    package(tmp_path, "one", twice="tests.policies:LowestCPUs")
    package(tmp_path, "other", twice="tests.policies:LowestCPUs")
    broken = {"broken": "broken_policy:Policy", "lacking": "tests.policies:Nobody"}
    package(tmp_path, "bad", **broken, strange="strange_policy:Strange", half="half_policy:Half")
    worse = {"leaving": "leaving_policy:Policy", "speechless": "speechless_policy:Policy"}
    package(tmp_path, "worse", **worse, undescribed="undescribed_policy:Undescribed")
    package(tmp_path, "torn")
    (tmp_path / "torn-1.dist-info/entry_points.txt").write_bytes(b"[cpupool.policies]\n\xff\n")
    # Another version of a package, which no import reaches.
    package(tmp_path / "behind", "lowest", lowest="nowhere:Policy")
    monkeypatch.syspath_prepend(tmp_path / "behind")
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    importlib.invalidate_caches()
    find_policy.cache_clear()
    installed_policies._provided.cache_clear()
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_policy_is_found_by_its_name() -> None:
    assert find_policy("lowest") is LowestCPUs


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        (
            "broken",
            (
                "the policy broken of the package bad, broken_policy:Policy, cannot be imported:"
                " ModuleNotFoundError: No module named 'nothing_of_this_name'"
            ),
            CORRECT,
        ),
        (
            "lacking",
            (
                "the policy lacking of the package bad, tests.policies:Nobody, cannot be imported:"
                " AttributeError: module 'tests.policies' has no attribute 'Nobody'"
            ),
            CORRECT,
        ),
        (
            "strange",
            (
                "the policy strange of the package bad, strange_policy:Strange, does not derive"
                " from CPUManagerPolicy"
            ),
            CORRECT,
        ),
        (
            "half",
            "the policy half of the package bad, half_policy:Half, has no method choose",
            CORRECT,
        ),
        (
            "leaving",
            (
                "the policy leaving of the package worse, leaving_policy:Policy, cannot be"
                " imported: SystemExit: 0"
            ),
            CORRECT,
        ),
        (
            "speechless",
            (
                "the policy speechless of the package worse, speechless_policy:Policy, cannot be"
                " imported: Speechless"
            ),
            CORRECT,
        ),
        (
            "undescribed",
            (
                "the policy undescribed of the package worse, undescribed_policy:Undescribed, has"
                " settings that is no frozenset"
            ),
            CORRECT,
        ),
        (
            "twice",
            "the packages one and other each have a policy twice",
            "remove all of them but one",
        ),
        ("lowset", "unknown value 'lowset'", "did you mean lowest?"),
    ],
)
def test_why_a_policy_cannot_be_used(name: str, what: str, remedy: str) -> None:
    assert find_policy(name) == Unusable(what, remedy)


def test_a_policy_that_no_package_has_may_be_missing_here_alone() -> None:
    found = find_policy("zz")
    assert isinstance(found, Unusable)
    assert found.remedy.startswith("use none or static or dynamic or koordinator or qrm or ")
    assert found.remedy.endswith(", or install the package of the policy here, too")


def test_all_are_listed_and_a_built_in_name_is_taken() -> None:
    found = installed()
    assert found["lowest"] is LowestCPUs
    assert found["static"] == Unusable(
        "the policy static of the package taken is never used: static is built in",
        "name it otherwise in the package",
    )
    assert isinstance(found["half"], Unusable)


def test_a_file_with_a_built_in_policy_looks_for_no_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(**_group: str) -> None:
        raise AssertionError

    monkeypatch.setattr("importlib.metadata.distributions", never)
    text = "cpuManager: {policy: static, reserved: 1}"
    file = poolconfig.parse("a.yaml", text, Names(), find_policy=find_policy)
    assert file.pools.cpu_manager.installed is None


def test_the_message_stands_at_the_key_and_other_files_are_judged() -> None:
    bad = Source.of("bad.yaml", "pools: {shared_a: {cpus: 1}}\ncpuManager:\n  policy: broken\n")
    good = Source.of("good.yaml", "pools: {shared_b: {cpus: 2}}\nnodeSelector: {a: b}\n")
    problems: list[Problem] = []
    files = poolconfig.parse_all([bad, good], Names(), problems, find_policy=find_policy)
    assert problems == []
    assert [file.pools.pools[0].name for file in files] == ["shared_a", "shared_b"]
    (problem,) = files[0].problems(None)
    assert str(problem).startswith("bad.yaml:3:11: cpuManager.policy: the policy broken of")
    assert files[1].problems(None) == ()
