"""The applications in `examples/`, run as their containers would."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXAMPLES = Path(__file__).parents[2] / "examples"
APP = EXAMPLES / "shared-cpus/app.py"
POLLER = EXAMPLES / "mixed-cpus/poller.c"
COMPILED = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread")
SANITIZED = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
POOLS = """
pools:
  exclusive_a: {cpus: "0"}
  shared_b: {cpus: "6-7"}
  default: {cpus: "2-3"}
nodeSelector: {role: worker}
"""
ONE = {"EXCLUSIVE_CPUS": "0"}

pytestmark = pytest.mark.skipif(
    not os.sched_getaffinity(0) >= {0, 1}, reason="CPUs 0 and 1 are needed"
)


def _threads(pid: int) -> set[CPUSet]:
    """Give the CPUs of each thread."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            found.add(CPUSet(os.sched_getaffinity(int(task.name))))
    return found


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_a_worker_runs_on_each_cpu_that_is_there_until_it_is_asked_to_end(
    ending: signal.Signals,
) -> None:
    variables = {"EXCLUSIVE_CPUS": "0,8190", "SHARED_CPUS": "1"}
    with subprocess.Popen([sys.executable, APP], env=variables, stdout=subprocess.PIPE) as process:
        pinned = {CPUSet.of(0), CPUSet.of(1)}
        eventually(lambda: pinned <= _threads(process.pid), "both work")
        process.send_signal(ending)
        told, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert re.findall(r"CPU (\d+): \d+ rounds\n", told.decode()) in (["0", "1"], ["1", "0"])


def compiled(source: Path, how: tuple[str, ...], folder: Path) -> Path:
    """Compile a sample into a folder; skip where the compiler cannot."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: install cc (apt-get install gcc libc6-dev)")
    program = folder / source.stem
    try:
        subprocess.run(["cc", *COMPILED, *how, "-o", program, source], check=True)
    except subprocess.CalledProcessError:
        if how is not SANITIZED:
            raise
        pytest.skip("this compiler has no address sanitizer")
    return program


@pytest.fixture(scope="module", params=[("-O2", "-static"), SANITIZED], ids=["static", "sanitized"])
def poller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the application, as its pod does and so that undefined behaviour ends it."""
    return compiled(POLLER, request.param, tmp_path_factory.mktemp("poller"))


class Polling:
    """The application, which polls, and what it has told."""

    def __init__(self, process: subprocess.Popen[str], told: Path) -> None:
        self.process = process
        self._told = told

    @property
    def told(self) -> list[str]:
        return self._told.read_text().splitlines()

    def await_line(self, line: str) -> None:
        eventually(lambda: line in self.told, lambda: f"{line}: {self.told}")

    def threads(self) -> tuple[str, set[str]]:
        """Give the CPUs of the first thread, and those of the others."""
        listed = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            (cpus,) = re.findall(r"Cpus_allowed_list:\t(.*)", (task / "status").read_text())
            listed[int(task.name)] = cpus
        return listed.pop(self.process.pid), set(listed.values())

    def await_threads(self, light: str, *polling: str) -> None:
        expected = (light, set(polling))
        eventually(lambda: self.threads() == expected, lambda: f"{expected}: {self.threads()}")

    def loosen(self) -> None:
        """Let every thread run everywhere, as kernels before 6.2 do when a cpuset is written."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {0, 1})


@contextmanager
def polling(program: Path, environment: Mapping[str, str], folder: Path) -> Iterator[Polling]:
    """Run the application until it is asked to end, and let it tell what it has done."""
    told = program.with_name("told")
    with (
        told.open("w") as output,
        subprocess.Popen(
            [program, folder], env=environment, stdout=output, stderr=output, text=True
        ) as process,
    ):
        try:
            yield Polling(process, told)
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def show(folder: Path, cpus: str, generation: int) -> None:
    """Replace a pool's file, as the agent does."""
    folder.mkdir(exist_ok=True)
    fresh = folder / "fresh"
    told = {"cpus": cpus, "generation": generation, "pool": "shared_b"}
    fresh.write_text(f"{json.dumps(told)}\n")
    fresh.replace(folder / "cpus.json")


@pytest.mark.parametrize("variable", ["EXCLUSIVE_CPUS", "OPENSHIFT_ISOLATED_CPUS"])
def test_a_poller_is_pinned_and_the_light_work_follows_the_pool(
    poller: Path, folder: Path, variable: str
) -> None:
    pool = folder / "pool"
    show(pool, "1", 6)
    with polling(poller, {variable: "0"}, pool) as app:
        app.await_line("generation 6: shared 1, pinned")
        app.await_threads("1", "0")
        show(pool, "0-1", 7)
        app.await_line("generation 7: shared 0-1, pinned again")
        app.await_threads("0-1", "0")
        # As after somebody else's write was repaired.
        app.loosen()
        show(pool, "1", 8)
        app.await_threads("1", "0")
        # As where the notice is ahead of the cpuset: there is no such CPU.
        app.loosen()
        show(pool, "1000", 9)
        app.await_threads("0-1", "0")
        show(pool, "0", 10)
        app.await_line("generation 10: shared 0, pinned again")
        # A pool that is gone.
        show(pool, "", 11)
        app.await_line("generation 11: shared , pinned again")
        app.await_threads("0", "0")
    assert app.process.returncode == 0
    assert not any("generation 9:" in line for line in app.told)
    polls, wakes = app.told[app.told.index("generation 11: shared , pinned again") + 1 :][:2]
    assert re.fullmatch(r"CPU 0: [1-9]\d* polls", polls)
    assert re.fullmatch(r"shared CPUs: [1-9]\d* wakes", wakes)


@pytest.mark.parametrize(
    ("variables", "content", "said"),
    [
        pytest.param({}, "", "request exclusive CPUs", id="no CPUs"),
        pytest.param({"EXCLUSIVE_CPUS": "0,x"}, "", "'0,x' is no list of CPUs", id="no list"),
        pytest.param({"EXCLUSIVE_CPUS": "0-1024"}, "", "CPUs below 1024", id="too many"),
        pytest.param(ONE, None, "cannot be watched: No such file", id="no folder"),
        pytest.param(ONE, "", "cpus.json cannot be read", id="empty"),
        pytest.param(ONE, "{}", "has no CPUs or no generation: {}", id="nothing told"),
    ],
)
def test_a_poller_that_cannot_begin_says_why(
    poller: Path, folder: Path, variables: dict[str, str], content: str | None, said: str
) -> None:
    pool = folder / "pool"
    if content is not None:
        pool.mkdir()
        (pool / "cpus.json").write_text(content)
    done = subprocess.run(
        [poller, pool],
        env=variables,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.startswith("poller: ")


def test_a_poller_follows_the_pool_of_a_node(poller: Path, folder: Path) -> None:
    with living(folder, MACHINES["arm_no_smt"].write(folder), {"role": "worker"}) as world:
        world.mount.show(worker=POOLS)
        with world.agent():
            pod = world.run("mixed", exclusive_a=1, shared_b=10)
            world.await_cpus(mixed="0,6-7")
            environment: dict[str, str] = {}
            for reply in world.replies(pod):
                environment |= reply.envs
            mounted = world.mounts(pod)["/run/cpupool/shared_b"]
            with polling(poller, environment, folder / mounted.lstrip("/")) as app:
                # CPUs that this machine has not.
                app.await_line("generation 1: shared 6-7, not all can be pinned yet")
                world.mount.show(worker=POOLS.replace("6-7", "1"))
                app.await_line("generation 2: shared 1, pinned again")
                app.await_threads("1", "0")
                # The agent's own move undoes another program's that comes before it.
                world.await_cpus(mixed="0-1")
                app.loosen()
                world.disturb("mixed", "4-5")
                app.await_line("generation 3: shared 1, pinned again")
                app.await_threads("1", "0")
