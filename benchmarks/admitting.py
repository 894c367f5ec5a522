"""The time to show how the webhook changes many pods: `cpupool admit` on a long file."""

from __future__ import annotations

import sys
import tempfile
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.rows import cpu_ms
from cpupool import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rows import Row

PODS: Final = 5000
_POD: Final = """\
apiVersion: v1
kind: Pod
metadata: {{name: pod-{number}, labels: {{app: web}}}}
spec:
  containers:
    - name: main
      image: registry.example.com/web:1.2
      resources:
        requests: {{cpu: 500m, memory: 1Gi}}
        limits: {{memory: 1Gi, nokia.k8s.io/exclusive_a: 1}}
"""


def admitting() -> Iterator[Row]:
    """The time of `cpupool admit` for 5,000 pods in one file of YAML."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pods.yaml"
        file.write_text("---\n".join(_POD.format(number=number) for number in range(PODS)))
        for shape in ([], ["--json"]):
            with redirect_stdout(StringIO()):
                taken_ms = min(cpu_ms(partial(_admit, file, *shape)) for _ in range(3))
            named = " ".join(["admit", *shape])
            yield (f"{PODS:,} pods, `cpupool {named}`", f"{taken_ms / 1000:.2f} s", "1 s")


def _admit(file: Path, *options: str) -> None:
    if cli.main(["admit", str(file), *options]):
        print("a pod is denied: the figure means nothing", file=sys.stderr)
