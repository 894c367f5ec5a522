"""What every test may rely on."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests import folders, forking, guard
from tests.spreading import Spreading, in_order
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from xdist.remote import Producer

WORKER = "PYTEST_XDIST_WORKER"
"""The variable by which pytest-xdist names a process of several."""
MEASURED = tuple(
    f"{room}/"
    for room in (
        *("config", "core", "enforce", "manager", "plugins", "policies", "qrm", "wire"),
        *("runtime/nri", "webhook/admission"),
    )
)
"""The unit tests by which the rooms with a floor are covered: their own, and of the next above."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the run the same at a terminal and in the background, and see to its end."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell starts what it runs in the background, and children would ignore it, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.pluginmanager.hasplugin("hypothesispytest"):
        # A guest, in which it takes seconds, leaves it out. Its option for a profile comes after.
        from tests import searching  # noqa: PLC0415

        searching.take_usual()
    # pytest's own name for the place of `tmp_path`.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folders.place())
    if guard.RUN not in os.environ:
        guarded = ExitStack()
        guarded.enter_context(guard.guarding())
        config.add_cleanup(guarded.close)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Spreading:
    """Spread the tests over the processes that `-n` asks for."""
    return Spreading(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests where they are spread over processes."""
    if WORKER in os.environ:
        items[:] = in_order(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure coverage by `MEASURED`: it makes other tests two to three times slower."""
    tracer, of_threads = sys.gettrace(), threading.gettrace()
    if not tracer or item.nodeid.removeprefix("tests/unit/").startswith(MEASURED):
        return (yield)
    # pytest-cov's own `no_cover` does nothing in a process of several.
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        threading.settrace(of_threads)
        sys.settrace(tracer)


def pytest_collection_finish() -> None:
    """Leave what lasts as long as the run, modules and thousands of tests, to no collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder whose path leaves room for a socket's name; `tmp_path` is too long for one."""
    with folders.folder() as made:
        yield made


@pytest.fixture
def lasting() -> Callable[[], AbstractSet[int]]:
    """Return what finds the processes that a test may start for the rest of its module."""
    return frozenset


@pytest.fixture(autouse=True)
def _no_process_is_left(lasting: Callable[[], AbstractSet[int]]) -> Iterator[None]:
    """Fail a test that leaves a process; what its module shares was there before."""
    before = _started().keys()
    yield

    def left() -> list[str]:
        allowed = before | lasting()
        return [line for pid, line in _started().items() if pid not in allowed]

    eventually(lambda: not left(), lambda: f"the end of {left()}")


def _started() -> dict[int, str]:
    """Return the processes that tests have started; that which forks some of them lasts."""
    found = guard.children()
    forks = forking.server_pid()
    if forks in found:
        del found[forks]
        found |= guard.children_of(forks)
    return found


@pytest.fixture(autouse=True, scope="module")
def _no_thread_is_left() -> Iterator[None]:
    """Fail a module that leaves a thread; a server that its tests share starts some in any test."""
    before = guard.threads()
    yield
    if guard.threads() - before:
        gc.collect()  # an executor ends its threads when nothing refers to it
    eventually(lambda: guard.threads() <= before, lambda: f"the end of {guard.threads() - before}")


@pytest.fixture(autouse=True)
def _logging_and_signals_as_they_were() -> Iterator[None]:
    """Undo what a command run in the test's own process sets up."""
    logger = logging.getLogger("cpupool")
    handlers, level = list(logger.handlers), logger.level
    interrupted = signal.getsignal(signal.SIGINT)
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    if signal.getsignal(signal.SIGINT) is not interrupted:
        # An interrupted command ignores SIGINT, and processes of later tests would inherit it.
        signal.signal(signal.SIGINT, interrupted)
