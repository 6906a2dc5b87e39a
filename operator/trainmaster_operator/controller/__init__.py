"""The controller does all of the operator's I/O: it receives events, carries out decisions, and writes status.

Read `app`, which runs an operator, and `wiring`, which constructs its parts. Then follow an event: `watching` passes it
to the `cache`, which puts the job's key on the `workqueue`; the `reconciler` takes the key, asks `reconciling.decide`,
and `writing` carries out the decision.

| module | contents |
|---|---|
| `main`, `settings` | the program `trainmaster-operator`, and its options |
| `app`, `wiring` | start and end of an operator; its parts |
| `lease` | leader election |
| `background` | the end and the failures of background tasks |
| `workqueue`, `reconciler` | the keys of jobs that wait for a pass; the passes |
| `apiserver` | the interface to the API server: `Cluster`, its client, its errors |
| `watching` | kopf, sweeps, and types that are watched only if a job uses them |
| `cache` | the operator's knowledge of each job, as small frozen views |
| `lookups` | a decision's other inputs: nodes, events, Kueue's flavors |
| `leaders` | the open stream of each job's leader: reports, progress, evidence |
| `writing` | status, children, pods, events |
| `keeping` | logs and evidence in ConfigMaps that outlive the pods |
| `keys` | the keys that sign assignments, and agents' Secrets |
| `recording` | records of jobs and of their ranks' figures, sent to a history |
| `observability` | metrics and probes |
"""
