"""Pool files of tests, and what reading them gives."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from cpupool.config import poolconfig
from cpupool.core.errors import ConfigError, Problem
from cpupool.core.names import Names

if TYPE_CHECKING:
    from cpupool.config.pool_file import PoolFile
    from cpupool.config.poolconfig import Source

GOOD = """\
resourceBaseName: nokia.k8s.io
pools:
  exclusive-pool:
    cpus : "2-7"
    hyperThreadingPolicy: multiThreaded
  shared-pool:
    cpus: 1
  default:
    cpus: 010, 0 - 0
nodeSelector:
  nodeType: on
  rack:
"""


def parse(text: str | bytes, name: str = "a.yaml", domain: str = "nokia.k8s.io") -> PoolFile:
    return poolconfig.parse(
        name, textwrap.dedent(text) if isinstance(text, str) else text, Names(domain)
    )


def refused(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    return [str(problem) for problem in raised.value.problems]


def sources(text: str | bytes) -> tuple[tuple[Source, ...], list[str]]:
    problems: list[Problem] = []
    found = poolconfig.sources("map.yaml", text, problems)
    return found, [str(problem) for problem in problems]


def files(*selectors: str) -> list[PoolFile]:
    """Make files a.yaml, b.yaml, ... with these selectors."""
    return [
        parse(f"nodeSelector: {{{selector}}}\npools: {{shared: {{cpus: 1}}}}", f"{name}.yaml")
        for name, selector in zip("abc", selectors, strict=False)
    ]
