"""What a guest boots from: a Debian kernel, unpacked, and a small first root file system."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path

import pytest

from tests.vm.packages import cache, depended, locked, unpacked

HERE = Path(__file__).parent
_MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "veth")
_TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "cpio": "cpio",
    "depmod": "kmod",
    "setpriv": "util-linux",
}
_SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Kernel(Enum):
    """A kernel, by the Debian release that has it."""

    BOOKWORM = "bookworm"
    """6.1, cgroup versions 1 and 2."""
    TRIXIE = "trixie"
    """6.12, built without the cpusets of version 1."""


@dataclass(frozen=True, slots=True)
class BootFiles:
    """What QEMU is given.

    Attributes:
        vmlinux: the kernel, uncompressed: QEMU enters it directly, through its PVH note.
        initramfs: an archive for the kernel to unpack.
        modules: the kernel's modules, in the layout of /lib/modules.
    """

    vmlinux: Path
    initramfs: Path
    modules: Path


def boot_files(kernel: Kernel) -> BootFiles:
    """Give a kernel's files, made once for each version of it.

    Where what it takes to boot them is not here, the test that asks is skipped.
    """
    for tool, package in _TOOLS.items():
        if shutil.which(tool, path=_SBIN) is None:
            pytest.skip(f"{tool} is not here: apt install {package}")
    tree = unpacked(kernel.value, *depended(kernel.value, "linux-image-amd64"))
    busybox = unpacked("bookworm", "busybox-static") / "bin/busybox"
    init = (HERE / "initramfs.sh").read_bytes()
    digest = sha256(init + " ".join(_MODULES).encode()).hexdigest()
    made = cache() / "boot" / f"{tree.name}-{digest[:12]}"
    (modules,) = tree.glob("**/lib/modules")
    with locked("boot"):
        if not made.exists():
            made.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=made.parent) as folder:
                new = Path(folder) / "new"
                new.mkdir()
                (vmlinuz,) = tree.glob("boot/vmlinuz-*")
                (new / "vmlinux").write_bytes(_uncompressed(vmlinuz))
                _archive(new / "initramfs", init, busybox, _modules(modules))
                new.rename(made)
    return BootFiles(made / "vmlinux", made / "initramfs", modules)


def _uncompressed(vmlinuz: Path) -> bytes:
    """Take the kernel out of a bzImage: Documentation/arch/x86/boot.rst, "payload_offset"."""
    image = vmlinuz.read_bytes()
    setup_sectors = image[0x1F1]
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    # The length includes four bytes that tell the unpacked size.
    payload = image[start : start + length - 4]
    zstd = unpacked("bookworm", "zstd") / "usr/bin/zstd"  # knows xz too
    command = [str(zstd), "--decompress", "--stdout"]
    return subprocess.run(command, check=True, input=payload, capture_output=True).stdout


def _modules(modules: Path) -> list[Path]:
    """List the modules that the first root needs, each after those that it depends on."""
    (release,) = (one.name for one in modules.iterdir())
    with tempfile.TemporaryDirectory() as base:
        # Where modprobe looks, whatever Debian's layout is.
        for lib in ("lib", "usr/lib"):
            (Path(base) / lib).mkdir(parents=True)
            (Path(base) / lib / "modules").symlink_to(modules)
        subprocess.run(["depmod", "-b", base, release], check=True, env={"PATH": _SBIN})
        asked = ["modprobe", "-C", "/dev/null", "-d", base, "-S", release, "-a", "--show-depends"]
        told = subprocess.run(
            [*asked, *_MODULES],
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": _SBIN},
        )
        lines = [line.split() for line in told.stdout.splitlines()]
        return [
            Path(path).resolve()
            for kind, path, *_ in dict.fromkeys(map(tuple, lines))
            if kind == "insmod"
        ]


def _archive(archive: Path, init: bytes, busybox: Path, modules: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for made in ("bin", "modules"):
            (root / made).mkdir()
        (root / "init").write_bytes(init)
        (root / "init").chmod(0o755)
        shutil.copy(busybox, root / "bin/busybox")
        for number, module in enumerate(modules):
            shutil.copy(module, root / "modules" / f"{number:02}-{module.name}")
        names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
        command = ["cpio", "--create", "--format=newc", "--owner=0:0", "--quiet"]
        with archive.open("wb") as file:
            subprocess.run(command, check=True, cwd=root, input=names.encode(), stdout=file)
