"""The webhook under a flood: how long good clients wait, and how much memory it takes.

`make flood`, or `python -m benchmarks.flood --minutes 1`. Each kind of bad client has a process.
One kind sends nothing. The others send a byte of the headers, a byte of the body, or a whole
request every second. A bad client connects again at once when the webhook closes its connection. A
good client asks at a fixed rate, by turns over a new connection and over one that it keeps. A
request's time begins when it is due.
"""

from __future__ import annotations

import argparse
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.client import HTTPException
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.processes import cpu_s, peak_mib
from benchmarks.webhook import document, ours, running
from tests.webhooks import LOCALHOST, Client, Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD: Final = b"POST /mutating-pods HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
_BODY: Final = _HEAD + b"Content-Length: 100000\r\n\r\n"
_WHOLE: Final = _HEAD + b"Content-Length: 2\r\n\r\n{}"
_DRIP_S: Final = 1.0
"""The time between two messages of a client that speaks."""
_AGAIN_S: Final = 0.05
"""The time until a client that could not connect tries again."""
_BIND_ADDRESS_NO_PORT: Final = 24
"""IP_BIND_ADDRESS_NO_PORT of ip(7)."""
_MOST_ASKING: Final = 64


class Kind(Enum):
    """The first message of a client of the flood; it then sends a byte, or this, now and then."""

    SILENT = None
    SLOW_HEADERS = _HEAD + b"X: "
    SLOW_BODY = _BODY
    WHOLE = _WHOLE


@dataclass
class Flood:
    """The clients of the flood, in one thread.

    Attributes:
        port: the webhook's.
        addresses: how many addresses of 127.0.0.0/8 the clients have.
        clients: the open connections, by file descriptor.
        speaking: those that have TLS and send something now and then.
        opened: how many connections it has opened.
        spoken: on how many of them it has sent something.
    """

    port: int
    addresses: int
    clients: dict[int, tuple[socket.socket, Kind]] = field(default_factory=dict)
    speaking: set[int] = field(default_factory=set)
    opened: int = 0
    spoken: int = 0

    def __post_init__(self) -> None:
        self._events = select.epoll()
        self._missing: list[Kind] = []
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    def run(self, kind: Kind, amount: int) -> None:
        """Keep so many clients of a kind until standard input ends."""
        self._missing = [kind] * amount
        self._events.register(sys.stdin, select.EPOLLIN)
        drip_s = tried_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s > tried_s + _AGAIN_S:
                tried_s, missing, self._missing = now_s, self._missing, []
                for lacking in missing:
                    self._open(lacking)
            if now_s > drip_s + _DRIP_S:
                drip_s = now_s
                for number in list(self.speaking):
                    self._drip(number)
            for number, _ in self._events.poll(_AGAIN_S):
                if number == sys.stdin.fileno():
                    return
                self._hear(number)

    def _open(self, kind: Kind) -> None:
        raw = socket.socket()
        raw.setblocking(False)  # noqa: FBT003 - the standard library's signature
        if self.addresses > 1:
            host = self.opened % self.addresses + 2
            # The kernel chooses a port when it knows both ends: each address has all of them.
            raw.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
            raw.bind((f"127.0.{host // 256}.{host % 256}", 0))
        try:
            raw.connect((LOCALHOST, self.port))
        except BlockingIOError:
            pass
        except OSError:
            # No port is free.
            raw.close()
            self._missing.append(kind)
            return
        self.opened += 1
        self.clients[raw.fileno()] = raw, kind
        # A connection that has come about is writable.
        wanted = select.EPOLLIN if kind is Kind.SILENT else select.EPOLLOUT
        self._events.register(raw.fileno(), wanted)

    def _hear(self, number: int) -> None:
        client, kind = self.clients[number]
        try:
            if kind.value is None or number in self.speaking:
                if not client.recv(4096):
                    self._again(number)
                return
            if not isinstance(client, ssl.SSLSocket):
                client = self._tls.wrap_socket(client, do_handshake_on_connect=False)
                self.clients[number] = client, kind
            client.do_handshake()
            client.send(kind.value)
            self.spoken += 1
            self.speaking.add(number)
            self._events.modify(number, select.EPOLLIN)
        except ssl.SSLWantReadError:
            self._events.modify(number, select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._events.modify(number, select.EPOLLOUT)
        except OSError:
            self._again(number)

    def _drip(self, number: int) -> None:
        client, kind = self.clients[number]
        try:
            client.send(_WHOLE if kind is Kind.WHOLE else b" ")
        except OSError:
            self._again(number)

    def _again(self, number: int) -> None:
        client, kind = self.clients.pop(number)
        self.speaking.discard(number)
        client.close()
        self._open(kind)


def flood(port: int, addresses: int, name: str, amount: int) -> None:
    """Flood a webhook with so many clients of a kind until standard input ends."""
    clients = Flood(port, addresses)
    clients.run(Kind[name], amount)
    print(
        f"flood, {name.lower()}: {clients.opened} connections opened, {clients.spoken} with TLS,"
        f" {time.process_time():.0f} s of CPU",
        flush=True,
    )


@contextmanager
def flooded(port: int, addresses: int, amounts: dict[Kind, int]) -> Iterator[None]:
    """Flood a webhook until the block ends, from a process for each kind of clients."""
    with ExitStack() as stack:
        for kind, amount in amounts.items():
            call = f"flood({port}, {addresses}, {kind.name!r}, {amount})"
            command = [sys.executable, "-c", f"from benchmarks.flood import flood; {call}"]
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
            stack.callback(process.communicate)
        yield


@dataclass
class Waits:
    """The times of the requests of one kind."""

    ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def shown(self) -> str:
        """Write the percentiles."""
        if not self.ms:
            return f"none answered, {len(self.failed)} failed"
        ordered = sorted(self.ms)
        p99 = ordered[int(len(ordered) * 0.99)]
        return (
            f"{len(ordered)} answered, p50 {median(ordered):.0f} ms, p99 {p99:.0f} ms,"
            f" max {ordered[-1]:.0f} ms, {len(self.failed)} failed"
        )


class GoodClient:
    """The client that the webhook is there for.

    Args:
        port: the webhook's.
        secret: its certificate.

    Attributes:
        waits: kind of connection → how long its requests have taken.
        hung_up: how often the webhook has closed the kept connection between two requests.
    """

    def __init__(self, port: int, secret: Secret) -> None:
        self._port = port
        self._trusting = secret.trusting()
        self._body = document()
        self._kept = self._client()
        self._turn = threading.Lock()
        self.hung_up = 0
        self.waits = {"new connections": Waits(), "a kept connection": Waits()}

    def ask_at(self, rate: float, seconds: float) -> None:
        """Ask so many times a second, whether or not the answers come."""
        began_s = time.monotonic()
        with ThreadPoolExecutor(_MOST_ASKING) as asking:
            for number in range(int(rate * seconds)):
                due_s = began_s + number / rate
                time.sleep(max(0.0, due_s - time.monotonic()))
                asking.submit(self._ask_new if number % 2 else self._ask_kept, due_s)

    def close(self) -> None:
        """Close the connection that it keeps."""
        self._kept.close()

    def _ask_new(self, due_s: float) -> None:
        with closing(self._client()) as client:
            self._ask(client, due_s, self.waits["new connections"])

    def _ask_kept(self, due_s: float) -> None:
        with self._turn:
            if self._is_closed():
                # An API server sees this, too, and connects again.
                self.hung_up += 1
                self._kept.close()
            if not self._ask(self._kept, due_s, self.waits["a kept connection"]):
                self._kept.close()
                self._kept = self._client()

    def _is_closed(self) -> bool:
        kept: socket.socket | None = self._kept.connection.sock
        return kept is not None and bool(select.select([kept], [], [], 0)[0])

    def _ask(self, client: Client, due_s: float, waits: Waits) -> bool:
        try:
            status = client.post("/mutating-pods", self._body).status
        except (OSError, HTTPException) as error:
            waits.failed.append(repr(error))
            return False
        if status != 200:
            waits.failed.append(str(status))
        else:
            waits.ms.append((time.monotonic() - due_s) * 1000)
        return status == 200

    def _client(self) -> Client:
        return Client(self._port, self._trusting)


def measure(
    seconds: float, rate: float, amounts: dict[Kind, int], addresses: int, cgroup: Path | None
) -> Iterator[tuple[str, str]]:
    """Flood a webhook, and yield each figure with its name."""
    with tempfile.TemporaryDirectory(prefix="cpl-") as name:
        secret = Secret(Path(name) / "tls")
        secret.rotate()
        _enter(cgroup)
        with running(ours(Path(name), secret), secret) as (pid, port):
            _enter(cgroup and cgroup.parent)
            good = GoodClient(port, secret)
            used_s = cpu_s(pid)
            with flooded(port, addresses, amounts), closing(good):
                good.ask_at(rate, seconds)
            for kind, waits in good.waits.items():
                yield kind, waits.shown()
                for reason in sorted(set(waits.failed)):
                    yield "  failed", f"{waits.failed.count(reason)} times {reason}"
            yield "  closed", f"{good.hung_up} times between two requests"
            yield "webhook, CPU", f"{(cpu_s(pid) - used_s) / seconds:.2f} of one CPU"
            yield "webhook, peak RSS", f"{peak_mib(pid):.0f} MiB"
            if cgroup:
                peak = cgroup / "memory.peak"
                peak = peak if peak.exists() else cgroup / "memory.max_usage_in_bytes"
                yield "cgroup, peak", f"{int(peak.read_text()) / 2**20:.0f} MiB, with the kernel's"


def _enter(cgroup: Path | None) -> None:
    """Move this process into a cgroup: the kernel charges a page where it is first used."""
    if cgroup:
        (cgroup / "cgroup.procs").write_text("0")


def main() -> int:
    """Print how the webhook does under the flood."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=5.0, help="requests of the good client per s")
    parser.add_argument("--silent", type=int, default=10_000)
    parser.add_argument("--slow-headers", type=int, default=1000)
    parser.add_argument("--slow-bodies", type=int, default=1000)
    parser.add_argument("--whole", type=int, default=500, help="clients with whole requests")
    parser.add_argument("--addresses", type=int, default=1, help="of the flood; 1: the good one's")
    parser.add_argument("--cgroup", type=Path, help="an empty one with a memory controller")
    asked = parser.parse_args()
    amounts = {
        Kind.SILENT: asked.silent,
        Kind.SLOW_HEADERS: asked.slow_headers,
        Kind.SLOW_BODY: asked.slow_bodies,
        Kind.WHOLE: asked.whole,
    }
    seconds = asked.minutes * 60
    for figure in measure(seconds, asked.rate, amounts, asked.addresses, asked.cgroup):
        print(": ".join(figure), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
