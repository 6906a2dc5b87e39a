"""A small Kubernetes in one process: API server, controllers, scheduler, and kubelets that run pods as processes.

These modules are public. Everything else may change, and nothing outside of the distribution imports it:

| module | purpose |
|---|---|
| `config` | the parts of a cluster: `ClusterConfig`, nodes, timings, `Image` |
| `embedded` | a cluster in this process: `LocalCluster` in an event loop, `ThreadedCluster` beside one |
| `cluster` | a cluster as a process of its own: `up`, `down`, `status` |
| `inside` | what tests may use of a cluster: the API without HTTP, faults, rights, faked containers |
| `testing.clusters` | the same tests on the embedded cluster and on real ones, with kubectl |

To read the code, begin with `embedded`, which starts everything. Then read `apiserver` (every request), `kinds` (what
each type adds to it), `controllers` and `scheduling` (what reacts to changes), `kubelet` (pods become processes).
`network` gives addresses and names, `devices` finds accelerators, `images` defines which images run, `auth` and
`access` decide who may do what, `private` keeps other users of the machine out. `events`, `ages` and `quantities` are
Kubernetes' ways to record, to show times and to count.
"""
