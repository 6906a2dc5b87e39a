"""The operator's I/O is all here: events come in, decisions of `reconciling` are carried out, status goes out.

Read `app` (an operator's life) and `wiring` (its parts), then follow an event: `watching` hands it to the `cache`,
which puts the job's key on the `workqueue`; the `reconciler` takes it, asks `reconciling.decide`, and `writing` does
what was decided.

| where | what |
|---|---|
| `main`, `settings` | the program `trainmaster-operator`, and its options |
| `app`, `wiring` | start and end of an operator; its parts |
| `lease` | leader election |
| `workqueue`, `reconciler` | jobs' keys that wait for a pass; a pass over a job |
| `apiserver` | the interface to the API server: `Cluster`, its client, its errors |
| `watching` | kopf, sweeps, types that are watched only where they are used |
| `cache` | what is known of each job, as small frozen views |
| `lookups` | what else a decision needs: nodes, events, Kueue's flavors |
| `leaders` | the open stream of each job's leader: reports, progress, evidence |
| `writing` | status, children, pods, events |
| `keeping` | logs and evidence in ConfigMaps that outlive the pods |
| `keys` | what assignments are signed with, and agents' Secrets |
| `recording` | records of jobs and of their ranks' figures, sent to a history |
| `observability` | metrics and probes |
"""
