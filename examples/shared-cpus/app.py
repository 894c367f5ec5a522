"""Runs one worker thread on each CPU of its pools, and follows a shared pool when it is resized.

`EXCLUSIVE_CPUS` and `SHARED_CPUS` tell what the container got when it was created. A shared pool
can change later: `/run/cpupool/<pool>/cpus` then tells what it is now.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

POOLS = Path("/run/cpupool")
LOOK_EVERY_S = 5
ENDING = {signal.SIGTERM, signal.SIGINT}


def cpus(text: str) -> set[int]:
    """Read CPUs in the kernel's list format: `0-3,8`."""
    found: set[int] = set()
    for piece in filter(None, text.strip().split(",")):
        first, _, last = piece.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def shared() -> set[int]:
    """Give the CPUs of the shared pools as they are now."""
    lists = [path.read_text() for path in POOLS.glob("*/cpus")]
    return set().union(*map(cpus, lists or [os.environ.get("SHARED_CPUS", "")]))


def work(cpu: int, stop: threading.Event) -> None:
    """Count on one CPU."""
    try:
        os.sched_setaffinity(0, {cpu})  # of this thread alone
    except OSError:
        return  # it is offline, or has just left the pool; the next look sees
    rounds = 0
    while not stop.wait(0.01):
        rounds += 1
    sys.stdout.write(f"CPU {cpu}: {rounds} rounds\n")


def main() -> None:
    """Keep one worker on each CPU until the container is stopped."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # kept for sigtimedwait
    exclusive = cpus(os.environ.get("EXCLUSIVE_CPUS", ""))
    workers: dict[int, tuple[threading.Thread, threading.Event]] = {}
    stopped = False
    while True:
        wanted = set() if stopped else exclusive | shared()
        ended = {cpu for cpu, (thread, _) in workers.items() if not thread.is_alive()}
        for cpu in (workers.keys() - wanted) | ended:
            thread, stop = workers.pop(cpu)
            stop.set()
            thread.join()
        for cpu in wanted - workers.keys():
            stop = threading.Event()
            thread = threading.Thread(target=work, args=(cpu, stop))
            workers[cpu] = thread, stop
            thread.start()
        if stopped:
            return
        stopped = signal.sigtimedwait(ENDING, LOOK_EVERY_S) is not None


if __name__ == "__main__":
    main()
