"""Look for memory that bad peers take: `make soak-peers`, or `python -m benchmarks.soak_peers`.

An agent runs in a memory cgroup of 256 MiB, the limit of its DaemonSet, under one kind of bad peers
after the other, each for `--minutes`: plugins whose lists are refused, clients that reset streams,
that do not read, that flood, and that send the smallest frames. The agent must live, still answer,
and take no more after the first minute. The cgroup lies below this process's own, and goes with it.
"""

from __future__ import annotations

import argparse
import os
import signal
import struct
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from benchmarks.processes import PATIENCE_S, agent, cpu_s
from cpupool.qrm import podresources_service
from tests import http2_frames as frames
from tests.apiserver import FakeAPIServer
from tests.machines import Machine
from tests.resource_plugins import PluginDouble, entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cpupool.local.node import EmbeddedNode

MINUTES: Final = 10.0
LIMIT_BYTES: Final = 256 * 2**20
SHARED: Final = "shared_big"
LISTING: Final = "/v1beta1.DevicePlugin/ListAndWatch"
OPTIONS: Final = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
_POOLS: Final = f'pools:\n  {SHARED}: {{cpus: "1-28"}}\n  default: {{cpus: "0,29-31"}}\n'
_OPTIONS: Final = ("--resource-plugins", "--resource-plugin-reconcile=1", "--metrics-port=0")
_GROWTH_MIB: Final = 8.0
"""The growth allowed after the first minute, the allocator's own: 200 MiB are left."""
_LOOK_S: Final = 5.0
_STAYS_S: Final = 20.0
"""The time that a bad peer stays with one server."""
_LAST_LINES: Final = 20
"""The number of lines to show of the log of an agent that has ended."""
_PAUSE_S: Final = 0.02
"""The pause of a bad peer between two bursts: the machine has other work."""


@dataclass(frozen=True, slots=True)
class Place:
    """The agent's sockets.

    Attributes:
        plugin: of the device plugin with 28,000 devices.
        door: where resource plugins register.
        pods: of the podresources service.
        plugins: the folder for resource plugins.
    """

    plugin: Path
    door: Path
    pods: Path
    plugins: Path

    @classmethod
    def of(cls, node: EmbeddedNode) -> Place:
        """Return the sockets on a node."""
        root = node.root
        plugins = root.state / "resource-plugins"
        listing = root.device_plugins / f"cpupool-{SHARED}.sock"
        return cls(
            listing, plugins / "kubelet.sock", podresources_service.usual_path(root), plugins
        )

    @property
    def servers(self) -> Mapping[Path, str]:
        """Return socket → a method that it has."""
        return {
            self.plugin: LISTING,
            self.door: "/resourceplugin.v1alpha1.Registration/Register",
            self.pods: "/v1.PodResourcesLister/List",
        }


def refused_lists(place: Place, stop: threading.Event) -> None:
    """Plugins whose lists are refused."""
    container = entry(1, "", b"\x0a\x04\x12\x02\x42\x00" * 5)
    lists = (
        b"".join(entry(1, f"{pod}", b"") for pod in range(200_000)),
        b"".join(entry(1, f"{pod}", container) for pod in range(60_000)),
        b"\x0a\x00" * 1_400_000,
        b"".join(entry(1, f"{pod}", b"") for pod in range(150_000)) + b"\xff",
        b"\xff" * 2_800_000,
        b"".join(entry(1, f"{pod}", b"") for pod in range(12_000)),
    )
    place.plugins.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        for number in range(2):
            plugin = PluginDouble(
                place.plugins / f"bad-{number}.sock",
                f"example.com/bad{number}",
                need_reconcile=True,
            )
            plugin.replies["GetResourcesAllocation"] = partial(_next, cycle(lists))
            opened.enter_context(plugin)
        stop.wait()


def _next(lists: Iterator[bytes], _request: bytes) -> bytes:
    return next(lists)


def rapid_resets(place: Place, stop: threading.Event) -> None:
    """Clients that open streams and reset them at once."""

    def bursts(method: str) -> Iterator[bytes]:
        for first in count(1, 400):
            numbers = range(first, first + 400, 2)
            yield b"".join(
                frames.request(number, method) + frames.reset(number) for number in numbers
            )

    _everywhere(place, stop, bursts)


def unread_streams(place: Place, stop: threading.Event) -> None:
    """Clients that ask for lists, a hundred each, and do not read."""
    window = frames.frame(frames.SETTINGS, content=frames.setting(4, 2**31 - 1))
    larger = frames.frame(frames.WINDOW_UPDATE, content=struct.pack(">I", 2**30))
    asks = window + larger + b"".join(frames.call(number, LISTING) for number in range(1, 31, 2))
    while not stop.is_set():
        with ExitStack() as opened:
            for _ in range(10):
                with suppress(OSError):
                    client = opened.enter_context(frames.connected(place.plugin))
                    client.sendall(asks)
            stop.wait(5.0)


def floods(place: Place, stop: threading.Event) -> None:
    """Clients that send pings, settings, frames without data, and do not read the answers."""
    kinds = cycle(
        (
            frames.frame(frames.PING, content=bytes(8)) * 1000,
            frames.frame(frames.SETTINGS) * 1000,
            b"".join(
                frames.frame(frames.SETTINGS, content=frames.setting(0x1000 + number, 1))
                for number in range(1000)
            ),
            frames.frame(frames.DATA, stream=1) * 1000,
            frames.request(1, LISTING, *((f"h{number}", "") for number in range(5000))),
        )
    )

    def bursts(method: str) -> Iterator[bytes]:
        yield frames.request(1, method)
        kind = next(kinds)
        while True:
            yield kind

    _everywhere(place, stop, bursts)


def smallest_frames(place: Place, stop: threading.Event) -> None:
    """Clients that send long requests, a byte in each frame, on many streams."""

    def bursts(method: str) -> Iterator[bytes]:
        prefix = struct.pack(">BI", 0, 4 * 2**20)
        numbers = range(1, 31, 2)
        for number in numbers:
            yield frames.request(number, method) + frames.frame(frames.DATA, 0, number, prefix)
        while True:
            yield b"".join(frames.frame(frames.DATA, 0, number, b"\0") * 100 for number in numbers)

    _everywhere(place, stop, bursts)


def _everywhere(
    place: Place, stop: threading.Event, bursts: Callable[[str], Iterator[bytes]]
) -> None:
    """Send to each server in turn, for as long as it bears that, and read nothing."""
    for path, method in cycle(place.servers.items()):
        until_s = time.monotonic() + _STAYS_S
        with suppress(OSError), frames.connected(path) as client:
            client.settimeout(_STAYS_S)
            for burst in bursts(method):
                client.sendall(burst)
                if stop.wait(_PAUSE_S) or time.monotonic() > until_s:
                    break
        if stop.wait(_PAUSE_S):
            return


KINDS: Final = {
    kind.__name__: kind
    for kind in (refused_lists, rapid_resets, unread_streams, floods, smallest_frames)
}


def main() -> None:
    """Let each kind of bad peers do what they can; exit with 1 if one of them has found memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="*", help=f"usually all: {', '.join(KINDS)}")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for each kind")
    asked = parser.parse_args()
    if unknown := set(asked.kind) - KINDS.keys():
        parser.error(f"there is no kind {', '.join(sorted(unknown))}; use {', '.join(KINDS)}")
    # The agent and its cgroup end with this process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bad = [name for name in asked.kind or KINDS if not _bears(name, asked.minutes * 60.0)]
    sys.exit(f"too much memory: {', '.join(bad)}" if bad else 0)


def _bears(name: str, lasts_s: float) -> bool:
    """Return whether an agent bears a kind of bad peers; print its memory now and then."""
    print(f"{name}: {KINDS[name].__doc__}", flush=True)
    stop = threading.Event()
    with (
        FakeAPIServer() as api,
        _limited() as group,
        TemporaryFile("w+") as said,
        agent(api, Machine(cores=32), _POOLS, *_OPTIONS, log=said) as (node, pid),
    ):
        if group:
            (group / "cgroup.procs").write_text(f"{pid}")
        place = Place.of(node)
        _until(lambda: all(path.is_socket() for path in place.servers))
        peers = threading.Thread(target=KINDS[name], args=(place, stop))
        peers.start()
        try:
            seen = _watched(pid, group, lasts_s)
            answers = bool(seen) and _answers(place.plugin)
            if not seen:
                said.seek(0)
                print(*said.readlines()[-_LAST_LINES:], sep="    ", flush=True)
        finally:
            stop.set()
            peers.join()
    first = [mib for at_s, mib in seen if at_s <= min(60.0, lasts_s / 2)]
    grown = max(mib for _, mib in seen) - max(first) if first else float("inf")
    print(
        f"  most in the first minute {max(first, default=0):.1f} MiB, then {grown:+.1f} MiB;"
        f" it {'answers' if answers else 'does not answer'}",
        flush=True,
    )
    return answers and grown <= _GROWTH_MIB


def _watched(pid: int, group: Path | None, lasts_s: float) -> list[tuple[float, float]]:
    """Return the resident memory, in MiB, at some seconds; nothing once the process has ended."""
    seen: list[tuple[float, float]] = []
    begun_s, used_s = time.monotonic(), cpu_s(pid)
    while (at_s := time.monotonic() - begun_s) < lasts_s:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            busy_s = cpu_s(pid) - used_s
        except (OSError, IndexError):
            pages = 0
        # One that has ended has none until it is waited for.
        if not pages:
            print(f"  the agent has ended after {at_s:.0f} s", flush=True)
            return []
        mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        if len(seen) % 6 == 0:
            limited = (
                f", cgroup {_read(group, 'memory.failcnt')} times at its limit" if group else ""
            )
            print(f"  {at_s:5.0f} s {mib:7.1f} MiB, {busy_s:6.1f} CPU s{limited}", flush=True)
        seen.append((at_s, mib))
        time.sleep(_LOOK_S)
    return seen


def _answers(path: Path) -> bool:
    """Return whether a device plugin answers a client that keeps the rules."""
    for _ in range(5):
        with suppress(OSError, AssertionError), frames.connected(path) as client:
            client.settimeout(PATIENCE_S)
            client.sendall(frames.call(1, OPTIONS))
            frames.Frames(client).until(frames.DATA, 1)
            return True
    return False


@contextmanager
def _limited() -> Iterator[Path | None]:
    """Make a memory cgroup of version 1 or 2 for the agent; None where that cannot be."""
    group = None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers in {"memory", ""}:
            top = Path("/sys/fs/cgroup") / controllers / own.lstrip("/")
            limit = "memory.limit_in_bytes" if controllers else "memory.max"
            made = top / f"cpupool-soak-{os.getpid()}"
            with suppress(OSError):
                made.mkdir()
                try:
                    (made / limit).write_text(f"{LIMIT_BYTES}")
                    group = made
                    break
                except OSError:
                    made.rmdir()
    if group is None:
        print("  no memory cgroup can be made here: only the resident memory is seen", flush=True)
    try:
        yield group
    finally:
        if group is not None:
            _until(lambda: not _read(group, "cgroup.procs"))
            group.rmdir()


def _read(group: Path, name: str) -> str:
    path = group / name
    return path.read_text().strip() if path.exists() else "?"


def _until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            sys.exit("it takes too long")
        time.sleep(0.05)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("it was interrupted; nothing of it is left")
