from __future__ import annotations

import pytest

from cpupool.core.cpu_manager import StaticOptions
from cpupool.core.errors import ConfigError


def test_options_are_read_as_the_kubelet_reads_them() -> None:
    read = StaticOptions.parse({"full-pcpus-only": "true", "align-by-socket": "F"})

    assert read == StaticOptions(full_pcpus_only=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"full-cores": "true"}, "full-cores: the static policy has no such option"),
        ({"full-pcpus-only": "yes"}, "full-pcpus-only: 'yes' is not a truth value"),
    ],
)
def test_what_is_no_option_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        StaticOptions.parse(options)
