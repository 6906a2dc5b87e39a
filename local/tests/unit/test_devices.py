"""A machine's devices are found in files, split among the nodes, and shown to containers by variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster_local.cluster import _gpus
from trainmaster_local.config import NodeConfig, machine_nodes
from trainmaster_local.devices import AMD, ASCEND, NVIDIA, found, select, visibility

CPU_NODE = "cpu_cores_count 64\nsimd_count 0\n"
GPU_NODE = "cpu_cores_count 0\nsimd_count 1216\n"


def machine(
    root: Path, *, driver: int = 0, files: tuple[str, ...] = (), kfd: tuple[str, ...] = (), davinci: int = 0
) -> Path:
    """Makes the drivers' files: NVIDIA's folder of each GPU, device files, and AMD's nodes."""
    for folder in ("proc", "sys", "dev/shm"):
        (root / folder).mkdir(parents=True)
    for number in range(driver):
        (root / "proc/driver/nvidia/gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    for name in (*files, *(f"davinci{number}" for number in range(davinci)), *(["davinci_manager"] if davinci else [])):
        (root / "dev" / name).touch()
    for number, properties in enumerate(kfd):
        node = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(properties)
    return root


NVIDIA_FILES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps")


@pytest.mark.parametrize(
    ("has", "devices"),
    [
        ({}, {}),
        ({"driver": 2, "files": NVIDIA_FILES}, {NVIDIA: ("0", "1")}),
        # The driver makes its device files when they are first used.
        ({"driver": 2}, {NVIDIA: ("0", "1")}),
        # A container sees all GPUs of the driver, and its own device files: here the GPUs 5 and 7.
        ({"driver": 8, "files": ("nvidia5", "nvidia7", "nvidiactl")}, {NVIDIA: ("0", "1")}),
        # gVisor shows device files only.
        ({"files": ("nvidia3",)}, {NVIDIA: ("0",)}),
        ({"kfd": (CPU_NODE, GPU_NODE, GPU_NODE)}, {AMD: ("0", "1")}),
        ({"kfd": (CPU_NODE,)}, {}),
        ({"davinci": 2}, {ASCEND: ("0", "1")}),
        ({"driver": 1, "kfd": (CPU_NODE, GPU_NODE)}, {NVIDIA: ("0",), AMD: ("0",)}),
    ],
)
def test_devices_are_found_in_the_drivers_files(
    tmp_path: Path, has: dict[str, object], devices: dict[str, tuple[str, ...]]
) -> None:
    assert found({"PATH": ""}, machine(tmp_path, **has)) == devices  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, {NVIDIA: ("1",), AMD: ("0", "1")}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {NVIDIA: (), AMD: ("0", "1")}),
        ({"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "1"}, {NVIDIA: (), AMD: ("1",)}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f2, GPU-0c"}, {NVIDIA: ("GPU-8f2", "GPU-0c"), AMD: ("0", "1")}),
        ({"CUDA_VISIBLE_DEVICES": "MIG-c6d4"}, {NVIDIA: ("MIG-c6d4",), AMD: ("0", "1")}),
        ({"ROCR_VISIBLE_DEVICES": "1,0"}, {NVIDIA: ("0", "1", "2"), AMD: ("1", "0")}),
        # HIP's numbers count the devices that ROCR leaves.
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, {NVIDIA: ("0", "1", "2"), AMD: ("1",)}),
    ],
)
def test_devices_that_the_environment_hides_are_not_given_out(
    tmp_path: Path, environment: dict[str, str], devices: dict[str, tuple[str, ...]]
) -> None:
    root = machine(tmp_path, driver=3, kfd=(CPU_NODE, GPU_NODE, GPU_NODE))
    assert found({"PATH": "", **environment}, root) == devices


def test_hip_reads_cuda_s_variable_on_a_machine_without_cuda(tmp_path: Path) -> None:
    root = machine(tmp_path, kfd=(GPU_NODE, GPU_NODE))
    assert found({"PATH": "", "CUDA_VISIBLE_DEVICES": "1"}, root) == {AMD: ("1",)}
    assert visibility({AMD: ("4", "5")}, {"CUDA_VISIBLE_DEVICES": "1"}) == {
        "ROCR_VISIBLE_DEVICES": "4,5",
        "HIP_VISIBLE_DEVICES": "1",
    }


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        (None, ("a", "b", "c")),
        ("2,0", ("c", "a")),
        (" 1 , 2", ("b", "c")),
        ("0,7,1", ("a",)),
        ("x", ()),
        ("1,1", ()),
        ("GPU-a", ()),
    ],
)
def test_numbers_count_the_devices_that_are_there(value: str | None, chosen: tuple[str, ...]) -> None:
    assert select(("a", "b", "c"), value) == chosen


def test_uuids_name_devices_of_the_container_only() -> None:
    assert select(("MIG-a", "MIG-b"), "MIG-b,MIG-z,MIG-a") == ("MIG-b",)


@pytest.mark.parametrize(
    ("devices", "asked", "variables"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "0"}, {}),
        ({NVIDIA: ("3", "5")}, {}, {"CUDA_VISIBLE_DEVICES": "3,5"}),
        # As in a container, which has only its own devices.
        ({NVIDIA: ("3", "5")}, {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "5"}),
        ({NVIDIA: ("3",)}, {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "3"}),
        ({NVIDIA: ()}, {}, {"CUDA_VISIBLE_DEVICES": "-1"}),
        ({NVIDIA: ()}, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "-1"}),
        ({AMD: ("2", "3")}, {}, {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0,1"}),
        (
            {AMD: ("2", "3")},
            {"HIP_VISIBLE_DEVICES": "1"},
            {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"},
        ),
        ({AMD: ()}, {}, {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}),
        # CANN treats an empty value as none at all.
        ({ASCEND: ()}, {}, {"ASCEND_RT_VISIBLE_DEVICES": "-1"}),
        ({ASCEND: ("0", "6")}, {}, {"ASCEND_RT_VISIBLE_DEVICES": "0,6"}),
        (
            {NVIDIA: (), AMD: ("1",)},
            {},
            {"CUDA_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"},
        ),
        ({"example.com/fpga": ("0",)}, {}, {}),
    ],
)
def test_a_container_sees_its_devices_and_no_others(
    devices: dict[str, tuple[str, ...]], asked: dict[str, str], variables: dict[str, str]
) -> None:
    assert visibility(devices, asked) == variables


def given(nodes: tuple[NodeConfig, ...], kind: str = NVIDIA) -> list[tuple[str, ...]]:
    return [node.devices.get(kind, ()) for node in nodes]


def test_each_device_is_on_one_node() -> None:
    assert given(machine_nodes({NVIDIA: ("0", "1")})) == [("0", "1")]
    assert given(machine_nodes({NVIDIA: ("0", "1", "2")}, nodes=2)) == [("0",), ("1", "2")]
    assert given(machine_nodes({NVIDIA: ("0",)}, nodes=2)) == [(), ("0",)]
    assert machine_nodes({})[0].devices == {}
    assert machine_nodes({AMD: ("0",)})[0].devices == {AMD: ("0",)}


def test_without_devices_given_they_are_this_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster_local.config.devices_found", lambda _: {NVIDIA: ("0",)})
    assert given(machine_nodes(gpus=2)) == [("0", "0")]


def test_gpus_limits_shares_or_fakes_them() -> None:
    assert given(machine_nodes({NVIDIA: ("4", "5", "6")}, gpus=1, nodes=2)) == [("4",), ("5",)]
    assert given(machine_nodes({NVIDIA: ("4", "5")}, gpus=3)) == [("4", "5", "4")]
    assert given(machine_nodes({}, gpus=2, nodes=2)) == [("0", "1"), ("2", "3")]
    assert given(machine_nodes({AMD: ("0",)}, gpus=2), AMD) == [("0", "0")]
    # The node still hides them: it lists the resource, with a count of zero.
    assert machine_nodes({NVIDIA: ("0",)}, gpus=0)[0].devices == {NVIDIA: ()}
    with pytest.raises(ValueError) as error:
        machine_nodes({NVIDIA: ()}, gpus=2)
    assert str(error.value) == (
        "--gpus 2: the environment hides every nvidia.com/gpu of this machine; unset CUDA_VISIBLE_DEVICES"
    )


@pytest.mark.parametrize(
    ("found_devices", "gpus", "nodes", "sentence"),
    [
        ({}, None, 1, "GPUs: none."),
        ({NVIDIA: ()}, None, 1, "GPUs: none."),
        ({NVIDIA: ("0", "1")}, None, 1, "GPUs: local has 2 nvidia.com/gpu (0, 1)."),
        (
            {NVIDIA: ("0", "1")},
            None,
            2,
            "GPUs: local-0 has 1 nvidia.com/gpu (0); local-1 has 1 nvidia.com/gpu (1).",
        ),
        ({NVIDIA: ("0",)}, 64, 1, "GPUs: local has 64 nvidia.com/gpu (0, shared by pods)."),
        ({}, 2, 1, "GPUs: local has 2 nvidia.com/gpu (faked: this machine has none)."),
    ],
)
def test_a_sentence_says_what_the_nodes_have(
    found_devices: dict[str, tuple[str, ...]], gpus: int | None, nodes: int, sentence: str
) -> None:
    assert _gpus(machine_nodes(found_devices, gpus=gpus, nodes=nodes), found_devices) == sentence
