"""The command line: picks the command, turns errors into one line, and is the only one to exit."""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from cpupool.commands.shell import beside, door
from cpupool.commands.shell.exit_codes import BAD_INPUT, FAILED, INTERRUPTED, UsageError
from cpupool.core.errors import CPUPoolError
from cpupool.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COMMANDS: Final = {
    "demo": "run a complete node on this machine, and show that containers stay on their CPUs",
    "agent": "run on a Kubernetes node: offer the pools, and keep each container on its CPUs",
    "resource-plugin": "run our plugins for the QoS Resource Manager: CPUs, memory, NICs by role",
    "webhook": "check and complete the pods that request pools, for the API server",
    "certs": "make, renew and publish the webhook's certificates",
    "admit": "show how the webhook changes a pod, or why it denies the pod",
    "validate": "check pool files and ConfigMaps before a node reads them",
    "topology": "draw this machine or a recorded machine: sockets, NUMA nodes, cores, CPUs",
    "status": "draw the CPUs of each container of the node, as the agent last saw them",
    "explain": "explain step by step why a container has its CPUs, or why it has none",
    "simulate": "show the CPUs that pods would get on a machine, and compare policies",
    "doctor": "find the reasons why pools do not work, on a node or in a support bundle",
    "kubelet-config": "print or check the kubelet settings that a pool file needs",
    "import": "convert OpenShift's PerformanceProfile to a pool file and kubelet settings",
    "support-bundle": "collect all data for a diagnosis in one file, and leave secrets out",
}
_MODULES: Final = {
    "demo": "demo.command",
    "import": "import_profile",  # `import` is a word of Python's own
}
"""The modules of commands that have another name."""


def run() -> NoReturn:
    """Run the command line of this process and exit."""
    with door.guard():
        try:
            sys.exit(main(sys.argv[1:]))
        except Exception:  # noqa: BLE001 - a bug: its words go through the door, too
            sys.excepthook(*sys.exc_info())
            sys.exit(FAILED)


def main(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code: 0, 1 for a failure, 2 for bad usage."""
    # gRPC's core tells of every closed connection; our own log says what matters.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with door.guard():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    # With a closed output (`>&-`) there is no message.
    out = sys.stdout or io.StringIO()
    try:
        parsed = _parser(arguments).parse_args(arguments)
        code: int = parsed.run(parsed, out)
        out.flush()
    except UsageError as error:
        return _say(str(error), BAD_INPUT)
    except CPUPoolError as error:
        return _say(str(error), FAILED)
    except KeyboardInterrupt:
        # Another Ctrl-C has nothing left to interrupt.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _say("interrupted; nothing is left behind", INTERRUPTED)
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`): write no message, also not at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        # A full disk behind the output, or behind what a command writes.
        where = error.filename or "the output"
        return _say(
            f"{where}: {error.strerror or error}; name a place with free space where you may write",
            FAILED,
        )
    return code


def _say(message: str, code: int) -> int:
    if sys.stderr:
        sys.stderr.write(f"cpupool: {message}\n")
    return code


class _Parser(argparse.ArgumentParser):
    """Answers bad usage with one line that says what to do."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse unknown arguments here, where the command and its help are known."""
        parsed, left_over = super().parse_known_args(args, namespace)
        if left_over:
            meant = [
                near
                for word in left_over
                if word.startswith("--")
                for near in _nearest(word.partition("=")[0], self._option_string_actions)
            ]
            hint = f" (did you mean {' and '.join(meant)}?)" if meant else ""
            self.error(f"unrecognized arguments: {' '.join(left_over)}{hint}")
        if beside.has_rules(self) and (why := beside.refusal(self, self._given(args))):
            self.error(why)
        return parsed, left_over

    def _given(self, args: Sequence[str] | None) -> set[str]:
        """Return the names of the options on the command line: those that set no default."""
        options = [action for action in self._actions if action.option_strings]
        before, self._defaults = self._defaults, {}
        defaults = [action.default for action in options]
        for action in options:
            action.default = argparse.SUPPRESS
        try:
            found, _ = super().parse_known_args(args)
        finally:
            self._defaults = before
            for action, default in zip(options, defaults, strict=True):
                action.default = default
        return {
            name
            for action in options
            if hasattr(found, action.dest)
            for name in action.option_strings
        }


def _nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return the known word that is nearest; nothing if none is near."""
    return difflib.get_close_matches(word, list(known), n=1)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="cpupool",
        description="Splits a Kubernetes node's CPUs into pools and keeps every container on its"
        " CPUs.",
        epilog="Start with: cpupool demo",
    )
    parser.add_argument("--version", action="version", version=f"cpupool {VERSION}")
    asked = next((word for word in arguments if not word.startswith("-")), None)
    if asked is not None and asked not in COMMANDS:
        near = _nearest(asked, COMMANDS)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(COMMANDS)}"
        raise UsageError(f"{asked!r} is no command; {hint}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name == asked:
            # Only the command at hand is imported: `topology` needs no gRPC, the agent no drawing.
            module_name = _MODULES.get(name, name.replace("-", "_"))
            # Modules are no garbage: collections that go through them take a tenth of the start.
            gc.disable()
            try:
                module = importlib.import_module(f"cpupool.commands.{module_name}")
            finally:
                gc.enable()
            module.add_parser(commands, summary)
        else:
            commands.add_parser(name, help=summary)
    return parser
