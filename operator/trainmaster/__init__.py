"""Trainmaster runs distributed PyTorch training on Kubernetes. docs/architecture.md says how the rooms work together.

- `api`: the custom resource, as typed values; the CRD is made from them.
- `rendering`: a job becomes manifests.
- `converting`: manifests of other operators become jobs.
- `reconciling`: what was observed of a job becomes what to do for it; pure, the heart of the operator.
- `controller`: the operator's I/O: watches in, plans carried out, status out.
- `wire`: what operator and agents send to each other; both import it.
- `agent`: PID 1 of every worker, standard library only.
- `kubeconfig`: kubeconfigs, read and checked for all who connect.
- `serving`: how every HTTP server of these processes is made.
- `client`: the Python SDK; `cli`: `trainmaster` and `kubectl dtj`.
- `history`: what became of jobs, recorded for when they are gone; `dashboard`: a page about jobs, for the browser.
- `local`: an embedded cluster with an operator, for `trainmaster demo` and `run_locally`.
"""

__version__ = "0.1.0"
