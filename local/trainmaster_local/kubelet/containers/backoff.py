"""The kubelet's back-off: 10 s, doubled to 5 min, forgotten after 10 min of running.

k8s.io/client-go `util/flowcontrol/backoff.go` as `kuberuntime_manager.doBackOff` uses it. The durations that people
read in messages are always Kubernetes' own; `scale` shrinks only the waiting, for tests.
"""

from __future__ import annotations

from dataclasses import dataclass

INITIAL_SECONDS = 10.0
MAX_SECONDS = 300.0


def go_duration(seconds: float) -> str:
    """Seconds as Go prints a time.Duration: `10s`, `1m20s`, `5m0s`, `500ms`."""
    if 0 < seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


@dataclass
class Backoff:
    """Back-off of one container. Times in seconds on one clock; `scale` multiplies every wait and the reset time."""

    scale: float = 1.0
    seconds: float = 0.0
    updated_at: float = 0.0

    def remaining(self, finished_at: float, now: float) -> float:
        """Seconds to wait before the container that ended at `finished_at` may start again; 0 when it may now."""
        if not self.seconds or self._expired(finished_at):
            return 0.0
        return max(0.0, finished_at + self.seconds * self.scale - now)

    def next(self, finished_at: float, now: float) -> None:
        """Notes that the container starts again now, so that the next end waits longer."""
        if not self.seconds or self._expired(finished_at):
            self.seconds = INITIAL_SECONDS
        else:
            self.seconds = min(self.seconds * 2, MAX_SECONDS)
        self.updated_at = now

    def _expired(self, finished_at: float) -> bool:
        return finished_at - self.updated_at > 2 * MAX_SECONDS * self.scale
