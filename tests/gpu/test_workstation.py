"""On a machine with a GPU the local cluster's pods get it: `gpus: 1` computes on it, and a pod that requests none sees
none.
"""

from __future__ import annotations

from trainmaster.local import run_locally

SECONDS = 60.0


def multiply() -> None:
    import os

    import torch

    print("sees", torch.cuda.device_count(), "by", os.environ.get("CUDA_VISIBLE_DEVICES"))
    if torch.cuda.is_available():
        ones = torch.ones(256, 256, device="cuda")
        print("product", (ones @ ones).sum().item())


def add_up() -> None:
    import os

    # NCCL rejects two ranks on one GPU, unless they are on two hosts.
    os.environ |= {"NCCL_HOSTID": f"host{os.environ['RANK']}", "NCCL_SOCKET_IFNAME": "lo"}
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    ranks = torch.full((1024,), float(dist.get_rank() + 1), device="cuda")
    dist.all_reduce(ranks)
    print("sees", torch.cuda.device_count(), "and adds up to", ranks[0].item())
    dist.destroy_process_group()


def lines(log: tuple[str, ...]) -> list[str]:
    return [line.removeprefix("[rank 0]: ").removeprefix("[rank 1]: ") for line in log]


def test_a_worker_with_one_gpu_computes_on_it() -> None:
    done = run_locally(multiply, workers=1, gpus=1, timeout=SECONDS, spec={"launcher": "exec"})
    assert done.succeeded, done.logs
    assert any(line.startswith("sees 1 by ") for line in lines(done.logs[0]))
    assert "product 16777216.0" in lines(done.logs[0])


def test_a_worker_without_gpus_sees_none() -> None:
    done = run_locally(multiply, workers=1, timeout=SECONDS, spec={"launcher": "exec"})
    assert done.succeeded, done.logs
    assert "sees 0 by -1" in lines(done.logs[0])


def test_two_workers_share_a_gpu_where_the_cluster_is_told_to() -> None:
    done = run_locally(add_up, workers=2, gpus=1, node_gpus=2, timeout=SECONDS, spec={"launcher": "exec"})
    assert done.succeeded, done.logs
    for worker in (0, 1):
        assert "sees 1 and adds up to 3.0" in lines(done.logs[worker])
