"""v1 Pod: `pod` is the type.

Its hooks in the order in which a new pod meets them: `defaults`, `admission` (and `quota`), `container_validation`,
`volume_validation` and `validation`. `qos` and `printing` say what `kubectl get` shows, `subresources` has binding and
eviction.
"""
