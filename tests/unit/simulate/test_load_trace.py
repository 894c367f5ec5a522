from __future__ import annotations

import pytest

from cpupool.core.errors import ConfigError
from cpupool.simulate.load_trace import read


def test_a_row_holds_until_the_next_one() -> None:
    text = "at_s,online,offline\n0,12.0,3\n10,14.5,3.5\n\n15,1,0\n"
    assert read("load.csv", text, 5.0) == {
        "online": [12.0, 12.0, 14.5, 1.0],
        "offline": [3.0, 3.0, 3.5, 0.0],
    }


def test_the_only_row_holds_for_a_period() -> None:
    assert read("load.csv", "at_s,a\n100,2\n", 5.0) == {"a": [2.0]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "load.csv:1:1: the first row does not name the pools; begin with a row as at_s,"),
        ("0,1\n", "load.csv:1:1: the first row does not name the pools"),
        ("at_s\n0\n", "load.csv:1:1: the first row does not name the pools"),
        ("at_s,a,a\n0,1,1\n", "load.csv:1:1: the first row does not name the pools"),
        ("at_s,a,\n0,1,1\n", "load.csv:1:1: the first row does not name the pools"),
        ("at_s,a\n", "load.csv:2:1: there is no load in it"),
        ("at_s,a\n0,1,2\n", "load.csv:2:1: this row has 3 values; write 2 values, for at_s, a"),
        ("at_s,a\n0,x\n", "load.csv:2:1: 'x' is no load"),
        ("at_s,a\n0,nan\n", "load.csv:2:1: 'nan' is no load"),
        ("at_s,a\n0,inf\n", "load.csv:2:1: 'inf' is no load"),
        ("at_s,a\n0,-1\n", "load.csv:2:1: '-1' is no load"),
        ("at_s,a\n0,1000000\n", "load.csv:2:1: 1e+06 CPUs are too many"),
        ("at_s,a\n0,1\n0,1\n", "load.csv:3:1: 0 s comes after 0 s; let the times grow"),
        ("at_s,a\n0,1\n1e9,1\n", "load.csv:3:1: 1e+09 s comes after 0 s"),
        ('at_s,a\n0,"1\n', "load.csv: this is no CSV"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read("load.csv", text, 5.0)
    assert said in str(refusal.value)
