"""This package creates, updates and deletes objects (k8s.io/apiserver `pkg/registry/generic/registry`).

- `writer`: the steps of a create and an update, from a decoded body to a stored revision. Read it first.
- `validating`: the validation of custom resources: schema, scale paths, CEL rules.
- `admission_policies`: ValidatingAdmissionPolicies, checked on every write.
- `deleter`: preconditions, finalizers and grace periods of a delete.
- `scaling`: the scale subresource.
"""
