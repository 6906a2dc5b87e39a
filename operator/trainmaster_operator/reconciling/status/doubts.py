"""Explains doubtful training: ranks that never met, and ranks that finished before others."""

from __future__ import annotations

from trainmaster_operator.api.v1alpha1 import Progress
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.status.progress import with_silence
from trainmaster_operator.wire.report import Report

NEVER_MET = "the ranks never formed a group: each of the {} ranks trained alone"
MEND = (
    "call torch.distributed.init_process_group and wrap the model in DistributedDataParallel; with Lightning set "
    "Trainer(num_nodes=…, devices=…), with Accelerate on CPUs Accelerator(cpu=True)"
)
SAME_BATCHES = "give each rank the same number of batches: DistributedSampler(drop_last=True), or torch's Join"


def with_notice(situation: Situation, progress: Progress | None, phase: str | None) -> Progress | None:
    """Returns the progress, with a notice if its ranks train without a group or report nothing.

    `phase` is the job's phase after the pass.
    """
    reports = [situation.reports.get(worker) for worker in situation.members.present]
    if not reports or any(report is None or not report.alone for report in reports):
        return with_silence(situation, progress, phase)
    ranks = sum(map(len, situation.members.ranks.values()))
    notice = f"{NEVER_MET.format(ranks)}; {MEND}"
    return (progress or Progress()).model_copy(update={"notice": notice})


def finished_early(situation: Situation, report: Report) -> str:
    """Returns which ranks had finished while a failed rank still trained; empty if there is none.

    A rank that waits in a collective for a finished rank loses its connection, or hangs.
    """
    workers = situation.finished if report.attempt == situation.status.attempt else frozenset[int]()
    members = situation.members
    finished = sorted({*report.finished, *(rank for worker in workers for rank in members.present_ranks(worker))})
    if not finished or report.rank is None or report.rank in finished:
        return ""
    progress = situation.observed.progress.get(report.worker, {}).get(report.rank)
    if situation.observed.progress_attempt != report.attempt or progress is None or progress.step is None:
        where = "still trained"
    elif progress.total_steps is not None and progress.step >= progress.total_steps:
        # It had made its last step, so the ranks have the same number of steps.
        return ""
    else:
        where = f"was at step {progress.step}" + (f" of {progress.total_steps}" if progress.total_steps else "")
    more = f" and {len(finished) - 1} more" if len(finished) > 1 else ""
    return f"rank {finished[0]}{more} finished while rank {report.rank} {where}; {SAME_BATCHES}"
