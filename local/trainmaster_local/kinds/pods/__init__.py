"""v1 Pod (kubernetes `pkg/apis/core`); workloads use `defaults` and `validation` for their pod templates.

Read `pod` first: it puts the type together. Its hooks, in the order in which the API server calls them for a new pod:

- `defaults`: the defaults of pods and pod templates.
- `admission`: what admission plugins add, and the `quota` that they enforce.
- `validation`, with `container_validation`, `volume_validation`, `affinity_validation` and `security_validation`.
- `warnings`: what is accepted and hardly meant.
- `printing`: the rows of `kubectl get pods`; `qos`: the quality-of-service class.
- `subresources`: binding and eviction.
"""
