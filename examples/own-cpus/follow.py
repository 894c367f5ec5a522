"""Runs on the container's own CPUs, and leaves those that go as soon as this is announced."""

import ctypes
import json
import os
import sys
from pathlib import Path

if len(sys.argv) > 2:
    sys.exit("usage: follow.py [FOLDER]")
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/run/cpupool/self")
if not (folder / "cpus.json").is_file():
    sys.exit(f"{folder} has no file cpus.json")


def cpus(text: str) -> set[int]:
    """Read CPUs in the kernel's list format: `0-3,8`."""
    ends = [piece.split("-") for piece in text.split(",") if piece]
    return {cpu for piece in ends for cpu in range(int(piece[0]), int(piece[-1]) + 1)}


libc, generation = ctypes.CDLL(None), 0
news = libc.inotify_init()
libc.inotify_add_watch(news, bytes(folder), 0x80)  # IN_MOVED_TO; before the first look
while True:
    now = json.loads((folder / "cpus.json").read_text())
    if now["generation"] != generation:
        generation, stay = now["generation"], cpus(now["cpus"]) & cpus(now["assigned"])
        os.sched_setaffinity(0, stay)
        print(f"generation {generation}: {sorted(stay)}, {now['change']}", flush=True)  # noqa: T201
    os.read(news, 4096)  # waits until a file has been replaced
