"""This package applies patches and tracks field ownership.

It follows k8s.io/apimachinery `pkg/util/managedfields` and sigs.k8s.io/structured-merge-diff.

- `json_patches`: JSON patch and JSON merge patch.
- `strategic`: the strategic merge patch of built-in types.
- `typed`: checks a configuration to apply against the schema of its type.
- `managed`: metadata.managedFields after an update and after a server-side apply. It needs
  `fieldsets` (sets of fields) and `merging` (merging a configuration into an object, and pruning what it dropped).
"""
