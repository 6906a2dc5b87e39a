"""The diagnosis says why a job doesn't run, has failed, or is slow: one dominant cause, its evidence, what to do next.

Everything here is pure. In the order of reading:

- `situation`: all that could be read of a job and of what it depends on, as raw objects, which `objects` reads;
- `finding`: what a rule has found; `diagnose` asks the rules in one order, and the first finding is the cause;
- the rules, one idea a module: `unserved` (nobody's job), `queueing` (Kueue), `gangs`, `quotas` and `refusals`
  (pods that can't be made: `refused_pods`), `scheduling` (the scheduler's words, with `words`, `room` and `claims`),
  `nodes`, `volumes`, `images` and `containers` (of `waiting_pods`, and `starting` where all containers run),
  `continuing` (a job that trains without some of its ranks), `failures` (with the `endings` of programs, and `hangs`),
  `slowness`.

`trainmaster.client.gathering` reads a situation from a cluster.
"""

from trainmaster.client.diagnosis.diagnose import diagnose
from trainmaster.client.diagnosis.finding import Diagnosis, Finding, Step
from trainmaster.client.diagnosis.situation import Situation

__all__ = ["Diagnosis", "Finding", "Situation", "Step", "diagnose"]
