"""A virtual machine with a topology of one's choice, on whose real kernel a test runs commands.

    with booted(Topology(sockets=2, cores=4, threads=2, nodes=2)) as guest:
        assert guest.output("nproc") == "16\n"

QEMU enters a Debian kernel directly (`boot.py`; `packages.py` gets it). The guest's root is the
host's own, read-only by 9p, under a layer that takes all changes and is lost at the end: programs,
the checkout and its virtual environment are where they are on the host. `/run` and
`/var/lib/containerd` are empty; `guest.folder` is one folder, shared and writable on both sides.
In it the host leaves its commands and finds what they printed; who is next is told on a
virtio-serial port, which is QEMU's own standard input and output (`obey.sh`).

KVM is used where a machine boots with it, software emulation otherwise. That is several times
slower than the host, and at 16 CPUs a command in the guest has the work of one host CPU: put what
needs Python into few processes, and assert no times. Where QEMU or a package is missing, the test
is skipped.
"""

from __future__ import annotations

import functools
import logging
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.vm.boot import HERE, Kernel, boot_files
from tests.vm.packages import locked
from tests.waiting import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

PROJECT = HERE.parents[1]
PYTHON = sys.executable
"""The host's, with all that is installed for the tests; it works in the guest too."""
FIGURE = "figure: "
"""Begins a line of a guest that the host logs."""
TIMEOUT_S = 3600.0
"""For a test that boots a machine: it may have to wait for the end of another."""
_TESTS_S = 1500.0
_PYTEST = (
    # An agent takes half a minute to start where other tests keep the host's CPUs busy.
    *("env", f"{DEADLINE}=600"),
    *(PYTHON, "-m", "pytest", "-q", f"--timeout={_TESTS_S:.0f}"),
    *("-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist", "--capture=no"),
    # Each of them takes seconds to import in a guest, and none is needed there.
    *("-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:randomly"),
)
# An Intel model, or there are no siblings; `enforce` ends QEMU where KVM does not do all of it.
_KVM = ("-accel", "kvm", "-cpu", "Nehalem,vendor=GenuineIntel,enforce")
# With a thread for each CPU it is no faster, and now and then it hangs.
_EMULATION = ("-accel", "tcg,thread=single", "-cpu", "Nehalem")
_BLOCKED = "INFO: task "
_BOOT_S = 180.0
_BOOTS = 3
_COMMAND_S = 600.0
_GRACE_S = 30.0
# Ends the machine and its folder when this process wants that, or has died. What comes on the
# standard input is the machine's: a shell gives a background process none unless told so.
_KEEPER = """
folder=$1; shift
exec 3<&0
"$@" <&3 3<&- &
exec <&- 3<&- >&-
trap 'kill -KILL $!; wait; rm -rf "$folder"; exit' TERM
wait $!
"""
_UNIT = """\
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/sh {share}/obey.sh
"""


class CgroupVersion(Enum):
    """What is mounted at /sys/fs/cgroup."""

    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class Topology:
    """The machine's CPUs; siblings have ids in a row, then come cores, then sockets.

    Attributes:
        sockets: packages.
        cores: per socket.
        threads: per core.
        nodes: NUMA nodes, over which the CPUs are spread evenly and in order.
    """

    sockets: int = 1
    cores: int = 1
    threads: int = 1
    nodes: int = 1

    @property
    def cpus(self) -> int:
        """How many CPUs that makes."""
        return self.sockets * self.cores * self.threads


class MachineFailed(Exception):
    """The machine has died, or does not answer; the message has the end of its console."""


class VirtualMachine:
    """A machine that has booted and runs commands, one after the other.

    Attributes:
        folder: shared with the host, at the same path on both sides.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self._process = process
        self._heard = b""
        self._commands = 0

    def run(self, *command: str, timeout_s: float = _COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout, and give its exit code and what it printed.

        What it leaves running in the background writes elsewhere.

        Args:
            command: the program and its arguments.
            timeout_s: after so long it is killed; the code is 137 then.

        Raises:
            MachineFailed: there is no answer.
        """
        self._commands += 1
        name = str(self._commands)
        limited = ["timeout", "--signal=KILL", f"{timeout_s:.0f}", *command]
        script = f"cd {shlex.quote(str(PROJECT))}\nexec {shlex.join(limited)}\n"
        (self.folder / f"{name}.sh").write_text(script)
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{name}\n".encode())
        except BrokenPipeError:
            raise self._failed("died") from None
        number, code = self.answer(timeout_s + _GRACE_S).split()
        assert number == name
        out, err = ((self.folder / f"{name}.{kind}").read_text() for kind in ("out", "err"))
        return subprocess.CompletedProcess(command, int(code), out, err)

    def output(self, *command: str, timeout_s: float = _COMMAND_S) -> str:
        """Run a command that must succeed, and give what it printed on its standard output."""
        done = self.run(*command, timeout_s=timeout_s)
        if done.returncode:
            told = f"{shlex.join(command)}: exit code {done.returncode}"
            pytest.fail(f"in the guest: {told}\n{done.stdout}{done.stderr}", pytrace=False)
        return done.stdout

    def passes(self, *modules: str) -> None:
        """Run modules of tests in the guest; one that fails there fails the test that asks."""
        printed = self.output(*_PYTEST, *modules, timeout_s=_TESTS_S)
        for line in printed.splitlines():
            if line.startswith(FIGURE):
                log.info(line.removeprefix(FIGURE))

    def answer(self, timeout_s: float) -> str:
        """Wait for the next line of the guest."""
        assert self._process.stdout
        due_s = time.monotonic() + timeout_s
        while b"\n" not in self._heard:
            left_s = max(0.0, due_s - time.monotonic())
            if not select.select([self._process.stdout], [], [], left_s)[0]:
                raise self._failed(f"said nothing for {timeout_s:.0f} s")
            more = os.read(self._process.stdout.fileno(), 4096)
            if not more:
                raise self._failed("died")
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def _failed(self, what: str) -> MachineFailed:
        texts = [(self.folder / name).read_text(errors="replace") for name in ("console", "qemu")]
        # The kernel shows the blocked task first, and then all others.
        _, blocked, where = texts[0].partition(_BLOCKED)
        said = f"{blocked}{where}"[:9000] or "".join(texts)[-4000:]
        return MachineFailed(f"the virtual machine {what}\n{said}")


@contextmanager
def booted(
    topology: Topology,
    *,
    kernel: Kernel = Kernel.TRIXIE,
    cgroup: CgroupVersion = CgroupVersion.V2,
    memory_mib: int = 1024,
    systemd: bool = False,
) -> Iterator[VirtualMachine]:
    """Boot a machine, and end it; wait while another test has one.

    Args:
        topology: its CPUs.
        kernel: the Debian kernel.
        cgroup: what is mounted; version 1 has cpusets with `Kernel.BOOKWORM` only.
        memory_mib: over all NUMA nodes; what is written into files takes of it.
        systemd: whether systemd is the first process, without any service; otherwise a shell is.

    Raises:
        MachineFailed: it does not come up.
    """
    if systemd and not Path("/lib/systemd/systemd").exists():
        pytest.skip("systemd is not here: apt install systemd")
    # Two at once would be too slow for what runs in them.
    with locked("machine"), _up(topology, kernel, cgroup, memory_mib, systemd=systemd) as guest:
        yield guest


@contextmanager
def _up(
    topology: Topology,
    kernel: Kernel,
    cgroup: CgroupVersion,
    memory_mib: int,
    *,
    systemd: bool,
) -> Iterator[VirtualMachine]:
    accelerator = _accelerator()
    for left in reversed(range(_BOOTS)):
        begun_s = time.monotonic()
        with _started(topology, accelerator, kernel, cgroup, memory_mib, systemd=systemd) as guest:
            try:
                guest.answer(_BOOT_S)
            except MachineFailed as error:
                # Nothing was asked of it yet: another try hides no failure of a test.
                if left:
                    log.warning("booting again: %s", error)
                    continue
                raise
            log.info(
                "%s: up in %.1f s (cgroup %s, kernel of %s, %s)",
                topology,
                time.monotonic() - begun_s,
                cgroup.value,
                kernel.value,
                accelerator[1],
            )
            yield guest
            return


@functools.cache
def _accelerator() -> tuple[str, ...]:
    """Find out whether a machine boots with KVM; that the device is there does not tell."""
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        with _started(Topology(), _KVM) as guest, suppress(MachineFailed):
            guest.answer(_BOOT_S)
            return _KVM
    return _EMULATION


@contextmanager
def _started(
    topology: Topology,
    accelerator: tuple[str, ...],
    kernel: Kernel = Kernel.TRIXIE,
    cgroup: CgroupVersion = CgroupVersion.V2,
    memory_mib: int = 512,
    *,
    systemd: bool = False,
) -> Iterator[VirtualMachine]:
    files = boot_files(kernel)
    with tempfile.TemporaryDirectory(prefix="cpupool-vm-", ignore_cleanup_errors=True) as folder:
        share = Path(folder)
        units = share / "run/systemd/system"
        units.mkdir(parents=True)
        (units / "obey.service").write_text(_UNIT.format(share=share))
        shutil.copy(HERE / "obey.sh", share)
        console = share / "console"
        console.touch()
        parameters = [
            *("quiet", "panic=-1", "console=ttyS0", "mitigations=off", "nokaslr"),
            # Each grace period, as of a cpuset that is written, waits for all emulated CPUs.
            "rcupdate.rcu_expedited=1",
            # A kernel that hangs ends, and says where its tasks wait.
            *("sysctl.kernel.hung_task_panic=1", "sysctl.kernel.hung_task_timeout_secs=60"),
            "sysctl.kernel.hung_task_check_interval_secs=5",
            "panic_print=1",
            # Or a partition that is written while a process changes its cgroup blocks the kernel:
            # docs/user/load-balancing.md. No test isolates these CPUs.
            "workqueue.unbound_cpus=0-1,3,5-7",
            *("random.trust_cpu=on", f"VM_CGROUP={cgroup.value}", f"VM_SHARE={share}"),
            *(("VM_INIT=systemd", "systemd.unit=obey.service") if systemd else ()),
        ]
        root = "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"
        machine = [
            # The machines, one after the other, last the longest of all tests. Without root it
            # only warns.
            *("nice", "--adjustment=-10"),
            *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-display", "none", "-serial", f"file:{console}"),
            *(*accelerator, *_processors(topology, memory_mib)),
            *("-kernel", str(files.vmlinux), "-initrd", str(files.initramfs)),
            *("-append", " ".join(parameters)),
            *("-device", "virtio-serial-pci", "-chardev", "stdio,id=port,signal=off"),
            *("-device", "virtserialport,chardev=port,nr=1", "-virtfs", root),
            *("-virtfs", f"local,path={share},mount_tag=share,security_model=none"),
        ]
        with (share / "qemu").open("wb") as said:
            keeper = ["setpriv", "--pdeathsig", "TERM", "sh", "-c", _KEEPER, "keeper", folder]
            process = subprocess.Popen(
                [*keeper, *machine],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for this process, which ends the machine
            )
        with process:
            try:
                yield VirtualMachine(share, process)
            finally:
                process.terminate()


def _processors(topology: Topology, memory_mib: int) -> list[str]:
    """Give QEMU's arguments for CPUs and memory."""
    parts = f"sockets={topology.sockets},cores={topology.cores},threads={topology.threads}"
    arguments = ["-m", f"{memory_mib}M", "-smp", f"{topology.cpus},{parts}"]
    size_mib, cpus = memory_mib // topology.nodes, topology.cpus // topology.nodes
    for node in range(topology.nodes):
        memory = f"memory-backend-memfd,id=memory{node},size={size_mib}M,share=on"
        members = f"{node * cpus}-{(node + 1) * cpus - 1}"
        arguments += ["-object", memory]
        arguments += ["-numa", f"node,nodeid={node},memdev=memory{node},cpus={members}"]
    return arguments
