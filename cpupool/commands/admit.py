"""`cpupool admit`: what the webhook makes of a pod, without a cluster."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TextIO

import yaml

from cpupool.admission import review
from cpupool.admission.decision import Denied, admit
from cpupool.commands import UsageError, add_command, input_file, read_file, read_text
from cpupool.commands.rules import add_rules, rules
from cpupool.config import poolconfig
from cpupool.config.poolconfig import Source
from cpupool.core import visible
from cpupool.core.errors import ConfigError, HostFileError, ManifestError, refuse_errors
from cpupool.core.names import MIXED_CPUS_ALLOWED, Names
from cpupool.host.pool_files import read_pool_files
from cpupool.kube import views

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from cpupool.admission.decision import Admitted
    from cpupool.admission.rules import Rules
    from cpupool.commands import Commands
    from cpupool.core.errors import Problem
    from cpupool.core.pools import NodePools
    from cpupool.kube.views import Body

_EXAMPLES = """\
examples:
  cpupool admit pod.yaml
  cpupool admit pod.yaml --pool-files configmaps/cpu-pooler-configmap.yaml --diff
  cpupool admit pod.yaml --pool-files /etc/cpu-pooler --cfs-quotas shared

The command prints the pod as the webhook completes it; of a workload it prints one pod of the
template. Warnings are comments before the pod. Without --pool-files the command knows no pools: it
checks only the form of a pool's name, sets no limit for a container with exclusive and shared CPUs,
and ignores OpenShift's resource for shared CPUs and Koordinator's classes.

Exit code 0: every pod in the file is admitted; 1: one is denied; 2: the command line is wrong, or a
file that it names cannot be used.
"""


def add_parser(commands: Commands, summary: str) -> None:
    """Add the command's arguments."""
    parser = add_command(
        commands,
        "admit",
        summary,
        "Shows how the webhook changes a pod: prints the completed pod, or the denial.",
        _EXAMPLES,
    )
    parser.add_argument(
        "file",
        metavar="POD",
        type=input_file,
        help="a file with Pods in YAML or JSON, with workloads as Deployment or Job, with lists of"
        " them, or - for standard input",
    )
    parser.add_argument(
        "--pool-files",
        metavar="FILE",
        type=input_file,
        nargs="+",
        help="the pools of the cluster: pool files, ConfigMap manifests, or folders with"
        " poolconfig-<name>.yaml files (default: not known)",
    )
    add_rules(parser)
    parser.add_argument(
        "--mixed-cpus-allowed",
        action="store_true",
        help="every namespace has the annotation that OpenShift's resource for shared CPUs needs"
        " (default: none has)",
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--diff", action="store_true", help="print only what is changed")
    shape.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Print what becomes of each pod.

    Returns:
        0 where all are admitted.

    Raises:
        UsageError: a file cannot be used.
    """
    allowed = {MIXED_CPUS_ALLOWED: ""} if arguments.mixed_cpus_allowed else {}
    going_by = replace(rules(arguments), namespaces=lambda _namespace: allowed)
    if arguments.pool_files is not None:
        going_by = going_by.knowing(_pools(arguments.pool_files, going_by.names))
    pods, decisions = _decide(arguments.file, going_by)
    if arguments.json:
        listed = [_as_json(*pair) for pair in zip(pods, decisions, strict=True)]
        out.write(json.dumps({"pods": listed}, indent=2) + "\n")
    else:
        write = _diff if arguments.diff else _manifest
        texts = ("".join(write(*pair)) for pair in zip(pods, decisions, strict=True))
        out.write(("" if arguments.diff else "---\n").join(texts))
    return 1 if any(isinstance(decision, Denied) for decision in decisions) else 0


def _decide(path: Path, going_by: Rules) -> tuple[list[Body], list[Admitted | Denied]]:
    try:
        pods: list[Body] = [*views.pods_from_text(str(path), read_text(path), copies=False)]
        if not pods:
            raise UsageError(f"{path}: there is no pod in it; name another file")
        return pods, [admit(pod, going_by, _namespace(pod)) for pod in pods]
    except ManifestError as error:
        raise UsageError(str(error) if error.source else f"{path}: {error}") from error


def _pools(paths: Sequence[Path], names: Names) -> list[NodePools]:
    problems: list[Problem] = []
    try:
        sources = [source for path in paths for source in _sources(path, problems)]
        files = poolconfig.parse_all(sources, names, problems)
        refuse_errors(problems)
    except (ConfigError, HostFileError) as error:
        raise UsageError(error) from error
    if not files:
        raise UsageError(f"{paths[0]}: there is no pool file in it; name another, or none")
    return [file.pools for file in files]


def _sources(path: Path, problems: list[Problem]) -> Iterable[Source]:
    if path.is_dir():
        return [Source.of(str(path / name), text) for name, text in read_pool_files(path).items()]
    return poolconfig.sources(str(path), read_file(path), problems)


def _manifest(before: Body, decision: Admitted | Denied) -> Iterator[str]:
    if isinstance(decision, Denied):
        yield _denial(before, decision)
    else:
        yield from (f"# warning: {warning}\n" for warning in decision.warnings)
        yield _yaml(decision.body)


def _diff(before: Body, decision: Admitted | Denied) -> Iterator[str]:
    if isinstance(decision, Denied):
        yield _denial(before, decision)
    else:
        yield from (f"# warning: {warning}\n" for warning in decision.warnings)
        old, new = (_yaml(body).splitlines(keepends=True) for body in (before, decision.body))
        yield from difflib.unified_diff(old, new, _name(before), f"{_name(before)}, admitted")


def _denial(body: Body, decision: Denied) -> str:
    return f"{_name(body)} is denied: {decision.message}\n"


def _as_json(before: Body, decision: Admitted | Denied) -> dict[str, Any]:
    if isinstance(decision, Denied):
        problems = [
            {"path": problem.path, "what": problem.what, "remedy": problem.remedy}
            for problem in decision.problems
        ]
        return {"pod": _name(before), "admitted": False, "problems": problems}
    return {
        "pod": _name(before),
        "admitted": True,
        "warnings": list(decision.warnings),
        "patch": review.patch(before, decision.body),
        "body": decision.body,
    }


_NO_TEXT_ELSEWHERE: Final = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+|[-+]?0o[0-7]+|[yYnN]")
"""Plain words that are text to PyYAML, and numbers or booleans to kubectl (sigs.k8s.io/yaml)."""


class _Dumper(yaml.SafeDumper):
    """Writes what kubectl reads as the same, and texts of several lines as lines."""

    def represent_scalar(self, tag: str, value: str, style: str | None = None) -> yaml.ScalarNode:
        """Choose the style of a scalar."""
        if "\n" in value:
            style = "|"
        elif tag == self.DEFAULT_SCALAR_TAG and _NO_TEXT_ELSEWHERE.fullmatch(value):
            style = "'"
        return super().represent_scalar(tag, value, style)


def _yaml(body: Body) -> str:
    def written(*, allow_unicode: bool) -> str:
        return yaml.dump(
            body, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=100
        )

    text = written(allow_unicode=True)
    # What is printed is read again: a mark that no terminal shows is an escape of YAML's own.
    return text if text == visible.lines(text) else written(allow_unicode=False)


def _name(body: Body) -> str:
    metadata = body.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName") or "(no name)"
    return visible.line(f"{_namespace(body)}/{name}")


def _namespace(body: Body) -> str:
    return str((body.get("metadata") or {}).get("namespace") or "default")
