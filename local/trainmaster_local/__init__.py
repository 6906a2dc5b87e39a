"""A small Kubernetes in one process: API server, controllers, scheduler, and kubelets that run pods as processes.

The public interface is in these modules. Everything else may change, and only this distribution imports it:

| module | purpose |
|---|---|
| `config` | the parts of a cluster: `ClusterConfig`, nodes, timings, `Image` |
| `embedded` | a cluster in this process: `LocalCluster` in an event loop, `ThreadedCluster` beside one |
| `cluster` | a cluster as a separate process: `up`, `down`, `status` |
| `inside` | the inside, for tests: the API without HTTP, faults, rights, faked containers |
| `testing.clusters` | the same tests on the embedded cluster and on real ones, with kubectl |

To read the code, begin with `embedded`, which starts everything. Then read `apiserver` (every request), `kinds` (the
types), `controllers` and `scheduling` (reactions to changes), and `kubelet` (pods become processes). `network` gives
addresses and names, `devices` finds accelerators, `images` lists the images that run, `auth` and `access` decide on
rights, and `private` keeps out other users of the machine. `events`, `ages` and `quantities` follow Kubernetes.
"""
