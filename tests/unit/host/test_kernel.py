from __future__ import annotations

import pytest

from cpupool.host import kernel


@pytest.mark.parametrize(
    ("release", "remembers"),
    [
        ("6.1.0-18-amd64", False),
        ("6.2.0", True),
        ("6.12.8+deb13-amd64", True),
        ("6.10.14-linuxkit", True),
        ("10.0-rc1", True),
        ("5.14.0-427.el9.x86_64", False),
        ("5.15.167.4-microsoft-standard-WSL2", False),
        ("4.18.0-553.el8_10.x86_64", False),
        ("6", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_affinities_are_remembered_since_linux_6_2(release: str, *, remembers: bool) -> None:
    assert kernel.remembers_affinity(release) is remembers


@pytest.mark.parametrize(
    ("release", "isolates"),
    [
        ("6.6.52", False),
        ("6.7.0-rc1", True),
        ("6.12.8+deb13-amd64", True),
        ("10.0", True),
        ("5.14.0-427.el9.x86_64", False),
        ("", False),
    ],
)
def test_partitions_far_from_the_root_are_there_since_linux_6_7(
    release: str, *, isolates: bool
) -> None:
    assert kernel.isolates_remotely(release) is isolates
