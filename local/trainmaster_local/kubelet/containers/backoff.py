"""The kubelet's back-off starts at 10 s, doubles up to 5 min, and resets after 10 min of running.

It follows k8s.io/client-go `util/flowcontrol/backoff.go` as `kuberuntime_manager.doBackOff` uses it. Durations in
messages are always Kubernetes' own; `scale` shrinks only the actual waits, for tests.
"""

from __future__ import annotations

from dataclasses import dataclass

INITIAL_SECONDS = 10.0
MAX_SECONDS = 300.0


def go_duration(seconds: float) -> str:
    """Returns seconds as Go prints a time.Duration: `10s`, `1m20s`, `5m0s`, `500ms`."""
    if 0 < seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


@dataclass
class Backoff:
    """A container's back-off has times in seconds on one clock; `scale` multiplies all waits and the reset time."""

    scale: float = 1.0
    seconds: float = 0.0
    updated_at: float = 0.0

    def remaining(self, finished_at: float, now: float) -> float:
        """Returns the seconds until the container that ended at `finished_at` may start; 0 if it may start now."""
        if not self.seconds or self._expired(finished_at):
            return 0.0
        return max(0.0, finished_at + self.seconds * self.scale - now)

    def next(self, finished_at: float, now: float) -> None:
        """Records that the container starts again now, so that the next end waits longer."""
        if not self.seconds or self._expired(finished_at):
            self.seconds = INITIAL_SECONDS
        else:
            self.seconds = min(self.seconds * 2, MAX_SECONDS)
        self.updated_at = now

    def _expired(self, finished_at: float) -> bool:
        return finished_at - self.updated_at > 2 * MAX_SECONDS * self.scale
