"""An image with one program, for the containers and for the sandboxes of these tests.

The program is `probe.c`, linked with nothing; the image is an OCI archive (image-spec,
image-layout.md), which no registry needs to be asked for.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

PROBE: Final = "cpupool.test/probe:1"
"""The image's name. Without arguments its program only waits, which is all that a sandbox does."""

_COMPILER: Final = ("cc", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-Os")
_LAYOUT: Final = "application/vnd.oci.image"


def archive(folder: Path) -> Path:
    """Build the program, and give the archive of the image; skips where it cannot be built."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: install cc (apt-get install gcc)")
    if platform.machine() != "x86_64":
        pytest.skip(f"probe.c makes the system calls of x86_64, this is {platform.machine()}")
    program = folder / "probe"
    subprocess.run([*_COMPILER, "-o", program, Path(__file__).with_name("probe.c")], check=True)
    made = folder / "probe.tar"
    made.write_bytes(_archive(program.read_bytes()))
    return made


def _archive(program: bytes) -> bytes:
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    layer = blob(f"{_LAYOUT}.layer.v1.tar", _tar({"probe": program}))
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/probe"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    kind = f"{_LAYOUT}.manifest.v1+json"
    manifest = {
        "schemaVersion": 2,
        "mediaType": kind,
        "config": blob(f"{_LAYOUT}.config.v1+json", _json(config)),
        "layers": [layer],
    }
    named = blob(kind, _json(manifest))
    named["annotations"] = {"io.containerd.image.name": PROBE}
    index = {"schemaVersion": 2, "manifests": [named]}
    layout = {"imageLayoutVersion": "1.0.0"}
    return _tar({**blobs, "index.json": _json(index), "oci-layout": _json(layout)})


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _tar(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return written.getvalue()
