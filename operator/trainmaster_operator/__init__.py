"""The operator runs distributed PyTorch training on Kubernetes. docs/architecture.md shows how its rooms work together.

- `api`: the custom resource, as typed values; the CRD is made from them.
- `rendering`: turns a job into manifests.
- `reconciling`: decides from what was observed of a job what to do for it. It is pure, and the heart of the operator.
- `controller`: the operator's I/O. It watches, carries decisions out, and writes status. `main` starts it.
- `agent`: PID 1 of every worker. It needs the standard library only.
- `wire`: the messages between operator and agents; both import it.
- `kubeconfig`: reads and checks kubeconfigs, for the operator and the console.
- `serving`: builds every HTTP server of the operator and the console.
"""

__version__ = "0.1.0"
