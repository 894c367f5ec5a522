import pytest

from cpupool.host import cgroup_names

UID = "1b2c3d4e-0000-1111-2222-333344445555"
SLICE = "1b2c3d4e_0000_1111_2222_333344445555"
STATIC = "0123456789abcdef0123456789abcdef"
ID = "ab12" * 16


@pytest.mark.parametrize(
    ("cgroup_root", "places"),
    [
        pytest.param(
            "",
            (
                "kubepods",
                "kubepods.slice",
                "kubelet/kubepods",
                "kubelet.slice/kubelet-kubepods.slice",
            ),
            id="without a setting, the usual places and kind's",
        ),
        pytest.param("/", ("kubepods", "kubepods.slice"), id="the kubelet's default root"),
        pytest.param(
            "/kubelet",
            ("kubelet/kubepods", "kubelet.slice/kubelet-kubepods.slice"),
            id="kind's root",
        ),
        pytest.param(
            "/node/my-pods/",
            (
                "node/my-pods/kubepods",
                "node.slice/node-my_pods.slice/node-my_pods-kubepods.slice",
            ),
            id="a deep root: slices repeat their parents, and escape dashes",
        ),
    ],
)
def test_kubepods_is_looked_for_in(cgroup_root: str, places: tuple[str, ...]) -> None:
    assert cgroup_names.kubepods(cgroup_root) == places


@pytest.mark.parametrize(
    "name",
    [
        "burstable",
        "besteffort",
        "kubepods-burstable.slice",
        "kubepods-besteffort.slice",
        "kubelet-kubepods-burstable.slice",
        "podman-kubepods-besteffort.slice",
    ],
)
def test_a_qos_level_is_no_pod(name: str) -> None:
    assert cgroup_names.is_qos_level(name)
    assert cgroup_names.pod_id(name) is None


@pytest.mark.parametrize(
    ("name", "pod"),
    [
        pytest.param(f"pod{UID}", UID, id="cgroupfs, any QoS"),
        pytest.param(f"kubepods-pod{SLICE}.slice", UID, id="systemd, Guaranteed"),
        pytest.param(f"kubepods-burstable-pod{SLICE}.slice", UID, id="systemd, Burstable"),
        pytest.param(f"kubepods-besteffort-pod{SLICE}.slice", UID, id="systemd, BestEffort"),
        pytest.param(
            f"kubelet-kubepods-burstable-pod{SLICE}.slice", UID, id="systemd below a cgroup root"
        ),
        pytest.param(
            f"podman-kubepods-pod{SLICE}.slice", UID, id="systemd below a root that begins with pod"
        ),
        pytest.param(f"pod{STATIC}", STATIC, id="cgroupfs, static pod"),
        pytest.param(f"kubepods-burstable-pod{STATIC}.slice", STATIC, id="systemd, static pod"),
    ],
)
def test_a_pod_is_recognised(name: str, pod: str) -> None:
    assert cgroup_names.pod_id(name) == pod
    assert not cgroup_names.is_qos_level(name)


@pytest.mark.parametrize(
    "name", ["pod", "system", "kubepods-pod.slice", "podman-kubepods.slice", f"{UID}.slice", ""]
)
def test_what_is_no_pod_is_not_taken_for_one(name: str) -> None:
    assert cgroup_names.pod_id(name) is None
    assert not cgroup_names.is_qos_level(name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(ID, id="containerd or docker, cgroupfs"),
        pytest.param(f"cri-containerd-{ID}.scope", id="containerd, systemd"),
        pytest.param(f"crio-{ID}", id="CRI-O, cgroupfs, and its plain sandbox past systemd"),
        pytest.param(f"crio-{ID}.scope", id="CRI-O, systemd"),
        pytest.param(f"docker-{ID}.scope", id="cri-dockerd, systemd"),
    ],
)
def test_a_container_is_recognised_by_its_id(name: str) -> None:
    assert cgroup_names.container_id(name) == ID


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"crio-conmon-{ID}", id="CRI-O's monitor, cgroupfs"),
        pytest.param(f"crio-conmon-{ID}.scope", id="CRI-O's monitor, systemd"),
        pytest.param(ID[:-1], id="too short for an id"),
        pytest.param(ID.upper(), id="no runtime writes capitals"),
        pytest.param("cgroup-child", id="a name without an id"),
    ],
)
def test_an_unknown_directory_keeps_its_whole_name(name: str) -> None:
    assert cgroup_names.container_id(name) == name
