"""The console submits training jobs, shows them, explains them and changes them. It runs without an operator.

- `client`: the Python SDK, and everything that reads jobs from a cluster.
- `cli`: the commands of `trainmaster` and `kubectl dtj`.
- `dashboard`: a page about jobs, for the browser.
- `history`: a server that records jobs, so that they can be shown after they are deleted.
- `serving`: the handling of requests, which `dashboard` and `history` share.
- `converting`: turns other operators' manifests into jobs.
- `local`: an embedded cluster with an operator, for `trainmaster demo` and `run_locally`.

The console imports `api`, `rendering` and `wire` of the operator (operator/trainmaster_operator), and the packages
`kubeconfig` and `serving`, which both use.
"""
