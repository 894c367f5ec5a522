from __future__ import annotations

from dataclasses import fields

import pytest

from cpupool.config import settings
from cpupool.config.settings import OPTIONS, AgentSettings, SettingRefused
from cpupool.core.errors import ConfigError
from cpupool.core.plugin_facts import ServedAs

FILE = "settings.yaml"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        settings.parse(FILE, text.encode())
    return [str(problem) for problem in refused.value.problems]


def test_every_field_is_an_option_with_a_name_of_its_own() -> None:
    assert [option.field for option in OPTIONS.values()] == [
        each.name for each in fields(AgentSettings)
    ]
    assert all(getattr(AgentSettings(), one.field) == one.default for one in OPTIONS.values())


@pytest.mark.parametrize("option", OPTIONS.values(), ids=list(OPTIONS))
def test_a_default_is_lawful(option: settings.Option) -> None:
    if option.choices:
        assert option.default in option.choices
    if option.default not in {"", False}:
        assert option.parse(str(option.default)) == option.default


def test_a_later_layer_wins() -> None:
    file = {"sweep_interval_s": 10.0, "config": "/file"}
    flags = {"sweep_interval_s": 20.0}

    found = AgentSettings.layered(file, flags)

    assert (found.sweep_interval_s, found.config) == (20.0, "/file")
    assert found.starter == AgentSettings().starter
    assert AgentSettings.layered() == AgentSettings()


def test_a_file_sets_what_it_names_and_nothing_else() -> None:
    text = """\
# of the lab
config: /etc/pools
configmap: ''
sweep-interval: 10
metrics-port: 0
enforcement: nri
verbose: true
resource-domain: example.com
"""
    assert settings.parse(FILE, text.encode()) == {
        "config": "/etc/pools",
        "configmap": "",
        "sweep_interval_s": 10.0,
        "metrics_port": 0,
        "enforcement": "nri",
        "verbose": True,
        "resource_domain": "example.com",
    }


@pytest.mark.parametrize("text", ["0", "86400"])
def test_a_pod_is_failed_at_once_or_within_a_day(text: str) -> None:
    written = f"fail-misfit-after: {text}"
    assert settings.parse(FILE, written.encode()) == {"fail_misfit_after_s": float(text)}


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_an_empty_file_sets_nothing(text: str) -> None:
    assert settings.parse(FILE, text.encode()) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sweep-intervall: 10", "1:1: sweep-intervall: unknown key; did you mean sweep-interval?"),
        (
            "sweep-interval: 100",
            "1:17: sweep-interval: '100' is not between 0.1 and 60 seconds; write another value",
        ),
        (
            "sweep-interval: soon",
            "1:17: sweep-interval: 'soon' is not between 0.1 and 60 seconds; write another value",
        ),
        (
            "metrics-port: 65536",
            "1:15: metrics-port: '65536' is no port; give a number up to 65535, or 0",
        ),
        (
            "fail-misfit-after: later",
            "1:20: fail-misfit-after: 'later' is not between 0 and 86400 seconds; write another",
        ),
        (
            "fail-misfit-after: 86401",
            "1:20: fail-misfit-after: '86401' is not between 0 and 86400 seconds; write another",
        ),
        ("metrics-port: x", "1:15: metrics-port: 'x' is no port; give a number up to 65535, or 0"),
        (
            "resource-domain: a/b",
            "1:18: resource-domain: 'a/b' is no DNS subdomain; write it as example.com",
        ),
        (
            "configmap: a/b/c",
            "1:12: configmap: 'a/b/c' is no name of a ConfigMap; write NAMESPACE/NAME",
        ),
        (
            "resource-plugin-names: milli=cpu:0",
            "1:24: resource-plugin-names: 'milli=cpu:0' maps no resource; write POD=PLUGIN[:DIV",
        ),
        (
            "resource-plugin-names: 'a=b, a=c'",
            "1:24: resource-plugin-names: a is mapped twice; keep one of the two",
        ),
        (
            "resource-plugin-names: a=b,b=c",
            "1:24: resource-plugin-names: a is mapped to b, which is mapped, too; name the plugin",
        ),
        (
            "resource-plugin-names: b=b:2",
            "1:24: resource-plugin-names: b is mapped to b, which is mapped, too; name the plugin",
        ),
        ("verbose: on", "1:10: verbose: 'on' is neither true nor false; write true or false"),
        (
            "enforcement: nrii",
            "1:14: enforcement: 'nrii' is none of auto, nri, cri, cgroup; did you mean nri?",
        ),
        (
            "config:\nverbose: true",
            "1:8: config: this is empty; write a value, or leave the key out",
        ),
        (
            "configmap:",
            "1:11: configmap: this is empty; write a value, or '' for none, or leave the key out",
        ),
        ("config: ''", "1:9: config: this is empty; write a value, or leave the key out"),
        ("config: [a]", "1:9: config: this must be text; write a single value"),
        ("config: {a: b}", "1:9: config: this must be text; write a single value"),
        (
            "verbose: true\nverbose: false",
            "2:1: verbose: this key stands here twice, first in line 1; keep one of the two",
        ),
        ("- config", "1:1: this must be a map; write key: value on lines of their own"),
        ("settings: a", "1:1: settings: unknown key; use "),
        (
            'host-root: "a\\0b"',
            "1:12: host-root: 'a\\x00b' has characters that cannot be printed; remove them",
        ),
        (
            'node-name: "\\ud800"',
            "1:12: node-name: '\\ud800' has characters that cannot be printed; remove them",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_a_remedy(text: str, said: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"{FILE}:{said}")


def test_everything_that_is_wrong_is_said_at_once() -> None:
    assert len(problems("a: b\nverbose: maybe\nmetrics-port: x\n")) == 3


def test_what_is_no_yaml_is_said_with_its_place() -> None:
    (problem,) = problems("config: [")
    assert problem.startswith(f"{FILE}:1:10: ")


def test_a_switch_may_be_off() -> None:
    assert settings.switch("false") is False
    with pytest.raises(SettingRefused, match="neither true nor false"):
        settings.switch("")


def test_a_plugin_may_serve_a_resource_under_another_name() -> None:
    text = settings.resource_names("example.com/milli=cpu:1000, nic=example.com/nic")
    assert settings.served_as(text) == {
        "example.com/milli": ServedAs("cpu", 1000),
        "nic": ServedAs("example.com/nic"),
    }
    assert settings.served_as("") == {}


@pytest.mark.parametrize("text", ["a", "a=", "=a", "a=b:", "a=b:x", "a=b:-1", "a b=c", "a=b/c/d"])
def test_what_maps_no_resource_is_refused(text: str) -> None:
    with pytest.raises(SettingRefused, match="maps no resource"):
        settings.served_as(text)
