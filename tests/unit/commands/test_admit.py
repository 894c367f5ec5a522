"""`cpupool admit`, as a pod author runs it."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cpupool.commands import admit
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.webhook.admission import decision
from cpupool.webhook.admission.rules import Rules
from tests.pods import container, pod, process
from tests.printed import EVIL

POOLS = "pools:\n  exclusive-a: {cpus: 2-7}\n  shared-a: {cpus: 1}\n  default: {cpus: 0}\n"
LARGER = "nodeSelector: {size: large}\npools:\n  shared-a: {cpus: 1-3}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pod.yaml"


def run(*arguments: str | Path) -> tuple[int, str]:
    """Run the command; give its exit code and what it prints."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    admit.add_parser(parser.add_subparsers(), "")
    parsed = parser.parse_args(["admit", *map(str, arguments)])
    out = io.StringIO()
    return parsed.run(parsed, out), out.getvalue()


def exclusive(**fields: Any) -> dict[str, Any]:
    return pod(container(pools={"exclusive-a": "1", "shared-a": "5"}, command=["app"], **fields))


def written(path: Path, *bodies: Any) -> Path:
    path.write_text(yaml.safe_dump_all(bodies, sort_keys=False))
    return path


def test_the_pod_is_printed_as_it_would_be_stored(path: Path) -> None:
    body = pod(container(pools={"exclusive-a": "1"}, command=["sh", "-c", "a\nb\n"]))
    code, text = run(written(path, body))
    assert code == 0
    assert yaml.safe_load(text) == decision.admit(body, Rules()).body  # type: ignore[union-attr]
    assert "    - |\n      a\n      b\n" in text


def test_only_the_example_pods_with_a_schedulers_annotation_are_denied() -> None:
    example = Path(__file__).parents[3] / "examples/koordinator"
    pools = ("--pool-files", example / "poolconfig.yaml")
    code, text = run(example / "pods.yaml", *pools, "--json")
    denied = {
        each["pod"]: each["problems"] for each in json.loads(text)["pods"] if not each["admitted"]
    }
    assert code == 1
    assert denied.keys() == {"default/lsr", "default/near"}
    assert {len(problems) for problems in denied.values()} == {1}


def test_kubectl_reads_every_text_as_text(path: Path) -> None:
    """It knows numbers and booleans that Python's YAML does not."""
    words = ["y", "N", "1e3", "-.5E-7", "0o17"]
    body = pod(container(pools={"exclusive-a": "1"}, command=["app", *words, "yn", "1e", "e3"]))
    _, text = run(written(path, body))
    assert [line for line in text.splitlines() if line.startswith("    - '")] == [
        f"    - '{word}'" for word in words
    ]


def test_pods_are_documents_and_warnings_are_comments(path: Path) -> None:
    code, text = run(written(path, exclusive(), pod(container())))
    assert code == 0
    assert text.startswith(
        "# warning: spec.containers[0].resources: it gets no cpu limit, because the webhook does"
        " not know the size of its shared pool; give the webhook the pool files\napiVersion: v1\n"
    )
    first, second = yaml.safe_load_all(text)
    assert first["spec"]["containers"][0]["command"] == ["/opt/cpupool/process-starter"]
    assert second == pod(container())


def test_a_denial_is_printed_beside_what_is_admitted(path: Path) -> None:
    code, text = run(written(path, pod(container(pools={"exclusive-a": "x"})), pod(container())))
    assert code == 1
    assert text.startswith(
        "default/a is denied: spec.containers[0].resources.limits[nokia.k8s.io/exclusive-a]: 'x' is"
    )
    assert text.endswith("---\n" + yaml.safe_dump(pod(container()), sort_keys=False))


def test_pools_come_from_files_manifests_and_folders(path: Path, tmp_path: Path) -> None:
    folder, manifest = tmp_path / "folder", tmp_path / "manifest.yaml"
    folder.mkdir()
    folder.joinpath("poolconfig-a.yaml").write_text(POOLS)
    data = {"poolconfig-b.yaml": LARGER}
    manifest.write_text(yaml.safe_dump({"kind": "ConfigMap", "data": data}))
    written(path, exclusive())

    code, text = run(path, "--pool-files", folder, manifest)

    assert code == 0
    limits = yaml.safe_load(text)["spec"]["containers"][0]["resources"]["limits"]
    assert limits["cpu"] == "4000m"
    code, text = run(path, "--pool-files", manifest)
    assert (code, "no pool file has" in text) == (1, True)


def test_words_about_changes_of_cpus_are_checked_by_the_pool_files(
    path: Path, tmp_path: Path
) -> None:
    pools = tmp_path / "poolconfig-a.yaml"
    pools.write_text("cpuManager: {policy: dynamic, reserved: 1, maxNoticeSeconds: 60}\n")
    body = pod(container())
    body["metadata"]["annotations"] = {"nokia.k8s.io/cpu-notice-seconds": "60"}
    written(path, body)

    assert run(path, "--pool-files", pools) == (0, yaml.safe_dump(body, sort_keys=False))
    code, text = run(path)
    assert code == 1
    assert "write a whole number of seconds, from 0 to 10," in text


def test_quotas_can_be_for_shared_cpus_only(path: Path) -> None:
    code, text = run(written(path, exclusive()), "--cfs-quotas", "shared")
    assert code == 0
    assert "cpu" not in yaml.safe_load(text)["spec"]["containers"][0]["resources"]["limits"]


def test_namespaces_allow_openshifts_resource_where_they_are_said_to(
    path: Path, tmp_path: Path
) -> None:
    pools = tmp_path / "poolconfig-a.yaml"
    pools.write_text(f"{POOLS}mixedCPUs: {{pool: shared-a}}\n")
    limits = {"cpu": "2", "memory": "1Gi", "workload.openshift.io/enable-shared-cpus": "1"}
    body = pod(container(resources={"limits": limits}))
    del body["metadata"]["namespace"]
    assert run(written(path, body)) == (0, yaml.safe_dump(body, sort_keys=False))
    code, text = run(path, "--pool-files", pools)
    assert code == 1
    assert "metadata.namespace: default is not allowed to have workload.openshift.io" in text
    code, text = run(path, "--pool-files", pools, "--mixed-cpus-allowed")
    assert code == 0
    assert yaml.safe_load(text)["metadata"]["annotations"] == {"cpu-shared.crio.io/main": "enable"}


def test_what_no_terminal_shows_is_printed_as_yaml_reads_it_again(path: Path) -> None:
    odd = EVIL.replace("\ud800", "")
    body = pod(container(pools={"exclusive-a": "1"}, command=["a\u202eb", odd, f"é\n{odd}"]))
    _, text = run(written(path, body))
    assert yaml.safe_load(text) == decision.admit(body, Rules()).body  # type: ignore[union-attr]
    assert {char for char in text if not char.isprintable()} == {"\n"}

    body = pod(container(pools={"exclusive-a": "1"}, command=["é\n✓"]))
    assert "é" in run(written(path, body))[1]


def test_the_difference_can_be_printed_alone(path: Path) -> None:
    body = pod(container(pools={"shared-a": "5"}))
    body["metadata"] = {"generateName": "x-", "namespace": "n"}
    code, text = run(written(path, body), "--diff")
    assert code == 0
    changed = [line for line in text.splitlines() if line.startswith(("+", "-"))]
    assert changed == [
        "--- n/x-",
        "+++ n/x-, admitted",
        "+        cpu: 0m",
        "+        cpu: 5m",
        "+    env:",
        "+    - name: CPU_POOLS",
        "+      value: shared",
    ]
    assert run(written(path, pod(container())), "--diff") == (0, "")
    assert run(written(path, pod(container(pools={"shared-a": "x"}))), "--diff")[0] == 1


def test_everything_can_be_printed_as_json(path: Path) -> None:
    denied = pod(container(pools={"exclusive-a": "1"}), processes=[])
    code, text = run(written(path, pod(container(pools={"shared-a": "5"})), denied), "--json")
    assert code == 1
    first, second = json.loads(text)["pods"]
    assert second == {
        "pod": "default/a",
        "admitted": False,
        "problems": [
            {
                "path": "metadata.annotations[nokia.k8s.io/cpus]",
                "what": "it names no container",
                "remedy": "name one, or remove the annotation",
            }
        ],
        "warnings": [
            (
                "spec.containers[0].command: there is none, so nothing makes the process wait for"
                " its exclusive CPUs; write the image's entry point here"
            )
        ],
    }
    assert (first["pod"], first["admitted"], first["warnings"]) == ("default/a", True, [])
    assert first["patch"][0]["path"] == "/spec/containers/0/resources/requests/cpu"
    assert first["body"]["spec"]["containers"][0]["env"][0]["value"] == "shared"


@pytest.mark.parametrize("shape", [[], ["--diff"]])
def test_a_denial_shows_the_warnings_too(path: Path, shape: list[str]) -> None:
    denied = pod(container(pools={"exclusive-a": "1"}), processes=[])
    _, text = run(written(path, denied), *shape)
    first, second = text.splitlines()
    assert first.startswith("default/a is denied: metadata.annotations")
    assert second.startswith("# warning: spec.containers[0].command: there is none")


def test_another_domain_is_another_annotation(path: Path) -> None:
    body = pod(container(pools={"exclusive-a": "1"}), processes=[{"processes": [process()]}])
    assert run(written(path, body))[0] == 1
    assert run(written(path, body), "--resource-domain", "example.com")[0] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"kind: Deployment", "spec.template.spec: is missing"),
        (b"kind: Service", "kind: 'Service' is not one of Pod, Deployment"),
        (b"kind: Pod\nspec: []", "pod.yaml: spec: this is not an object"),
        (b"kind: Pod\nspec: {containers: [{name: 1}]}", "containers.0..name: this is not text"),
        (b"{", "line|JSON|Expecting"),
        (b"", "there is no pod in it"),
        (b"\xff", "this is not UTF-8"),
    ],
)
def test_a_file_without_pods_is_bad_usage(path: Path, text: bytes, words: str) -> None:
    path.write_bytes(text)
    with pytest.raises(UsageError, match=words) as raised:
        run(path)
    assert str(raised.value).count(str(path)) == 1


def test_pool_files_that_cannot_be_used_are_bad_usage(path: Path, tmp_path: Path) -> None:
    written(path, pod(container()))
    bad = tmp_path / "bad.yaml"
    bad.write_text("pools: {a: {cpus: x}}")
    with pytest.raises(UsageError, match="is not a CPU list"):
        run(path, "--pool-files", bad)
    with pytest.raises(UsageError, match="No such file"):
        run(path, "--pool-files", tmp_path / "none")
    with pytest.raises(UsageError, match="No such file"):
        run(tmp_path / "none")
    # The webhook would say of an empty folder that pools are not known, not that there is none.
    with pytest.raises(UsageError, match="there is no pool file in it"):
        run(path, "--pool-files", tmp_path)


KOORDINATOR = "pools: {default: {cpus: 0-7}}\ncpuManager: {policy: koordinator, reserved: 1}\n"
CHART = """\
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: kata}
handler: kata
overhead: {podFixed: {cpu: 500m}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {koordinator.sh/qosClass: LSR}}
spec:
  priorityClassName: koord-prod
  runtimeClassName: kata
  containers: [{name: a, image: i, resources: {limits: {cpu: 3500m}}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: batch}
spec:
  replicas: 3
  template:
    metadata: {labels: {koordinator.sh/qosClass: BE}}
    spec:
      priorityClassName: koord-batch
      containers: [{name: a, image: i}]
"""


def test_a_chart_is_admitted_as_the_cluster_completes_it(path: Path, tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text(KOORDINATOR)
    path.write_text(CHART)
    code, text = run(path, "--pool-files", tmp_path / "pools.yaml")
    web, batch = yaml.safe_load_all(text)
    assert code == 0
    assert web == list(yaml.safe_load_all(CHART))[2]
    assert batch["metadata"]["name"] == "batch-0"

    path.write_text(CHART.replace("koord-prod", "other").replace("cpu: 500m", "cpu: 250m"))
    code, text = run(path, "--pool-files", tmp_path / "pools.yaml")
    assert code == 1
    assert "this one requests 3750m, 250m of these as spec.overhead" in text
    assert "the pod has no priority class of Koordinator" in text


def test_a_schedulers_annotation_is_admitted_for_a_scheduler(path: Path, tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text(KOORDINATOR)
    body = pod(container())
    body["metadata"]["annotations"] = {"scheduling.koordinator.sh/resource-status": "{}"}
    given = (written(path, body), "--pool-files", tmp_path / "pools.yaml")
    assert run(*given)[0] == 1
    account = "system:serviceaccount:koordinator-system:koord-scheduler"
    assert run(*given, "--as", account)[0] == 0


def test_a_namespace_in_the_file_allows_what_it_allows(path: Path) -> None:
    allowed = {"workload.mixedcpus.openshift.io/allowed": ""}
    mixed = pod(container(resources={"limits": {"workload.openshift.io/enable-shared-cpus": 1}}))
    space = {"kind": "Namespace", "metadata": {"name": "default", "annotations": allowed}}
    pools = "pools: {default: {cpus: 0}, shared_a: {cpus: 1}}\nmixedCPUs: {pool: shared_a}\n"
    (path.parent / "pools.yaml").write_text(pools)
    found = [
        run(written(path, mixed, *beside), "--pool-files", path.parent / "pools.yaml")[1]
        for beside in ([], [space])
    ]
    assert ["is not allowed to have" in text for text in found] == [True, False]
