"""`trainmaster local status` shows where the cluster is and the resources of its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainmaster.cli.main import app
from trainmaster_local import cluster


def test_status_names_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = "GPUs: local has 2 nvidia.com/gpu (0, 1)."
    info = cluster.ClusterInfo(71, "https://127.0.0.1:4000", tmp_path / "kubeconfig", tmp_path, gpus)
    info.write()
    assert cluster.ClusterInfo.read(tmp_path) == info
    monkeypatch.setattr(cluster, "status", lambda state_dir: info)
    result = CliRunner().invoke(app, ["local", "status", "--state-dir", str(tmp_path)])
    assert result.output.splitlines() == [
        f"The cluster is up at https://127.0.0.1:4000 (process 71), kubeconfig {tmp_path / 'kubeconfig'}.",
        gpus,
    ]
