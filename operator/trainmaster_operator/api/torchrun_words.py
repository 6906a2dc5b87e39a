"""These are torchrun's options, by which the words of a command are read.

Options: torch 2.13, torch/distributed/run.py.
"""

from __future__ import annotations

FLAGS = {"standalone", "use_env", "module", "no_python", "run_path", "virtual_local_rank"}
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}
VALUES = {
    "nnodes",
    "nproc_per_node",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_conf",
    "max_restarts",
    "monitor_interval",
    "start_method",
    "event_log_handler",
    "role",
    "log_dir",
    "redirects",
    "tee",
    "local_ranks_filter",
    "node_rank",
    "master_addr",
    "master_port",
    "local_addr",
    "logs_specs",
    "duplicate_stdout_filters",
    "duplicate_stderr_filters",
    "numa_binding",
    "signals_to_handle",
}


def option_of(word: str) -> str:
    """Returns the name of an option without its value: nproc_per_node of --nproc-per-node."""
    return _SHORT.get(word, word.removeprefix("--").replace("-", "_"))
