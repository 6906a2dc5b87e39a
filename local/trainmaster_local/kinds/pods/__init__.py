"""v1 Pod (kubernetes `pkg/apis/core`); workloads use `defaults` and `validation` for their pod templates.

Read `pod` first: it assembles the type. Its hooks, in the order in which the API server calls them for a new pod:

- `defaults`: the defaults of pods and pod templates.
- `admission`: the additions of admission plugins, and the `quota` that they enforce.
- `validation`, with `container_validation`, `volume_validation`, `affinity_validation` and `security_validation`.
- `warnings`: valid fields that are probably mistakes.
- `printing`: the rows of `kubectl get pods`; `qos`: the quality-of-service class.
- `subresources`: binding and eviction.
"""
