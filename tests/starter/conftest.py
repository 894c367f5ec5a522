"""Builds the starter, and a program for it to start."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.starter.containers import Containers

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SANITIZED = "-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all"


def _built(folder: Path, flags: str = "") -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: install cc (apt-get install gcc libc6-dev)")
    environment = os.environ | ({"STARTER_FLAGS": flags} if flags else {})
    subprocess.run([ROOT / "tools" / "starter.sh", folder], check=True, env=environment)
    return folder / platform.machine() / "process-starter"


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build what the image has."""
    return _built(tmp_path_factory.mktemp("starter"))


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build one that aborts on undefined behaviour and stray memory accesses."""
    try:
        return _built(tmp_path_factory.mktemp("sanitized"), SANITIZED)
    except subprocess.CalledProcessError:
        pytest.skip("this compiler has no address sanitizer")


@pytest.fixture(scope="session")
def report(starter: Path) -> Path:
    """Build the program that tells its CPUs and its arguments."""
    program = starter.parent / "report"
    source = Path(__file__).with_name("report.c")
    subprocess.run(["cc", "-static", "-Os", "-o", program, source], check=True)
    return program


@pytest.fixture
def emulated(starter: Path, folder: Path) -> Iterator[Containers]:
    """Start containers with the program for arm64, whose system calls qemu translates."""
    program = starter.parents[1] / "aarch64" / starter.name
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None or not program.exists():
        pytest.skip(
            "no cross compiler or no qemu: apt-get install gcc-aarch64-linux-gnu"
            " libc6-dev-arm64-cross qemu-user-static"
        )
    with Containers(program, folder, (qemu,)) as made:
        yield made


@pytest.fixture
def containers(starter: Path, folder: Path) -> Iterator[Containers]:
    """Start containers, and end what is left of them."""
    with Containers(starter, folder) as made:
        yield made
