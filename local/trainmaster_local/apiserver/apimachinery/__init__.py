"""The API server and the built-in types share these modules, which follow k8s.io/apimachinery.

- `errors`: `ApiError`, the one exception of the API, and the field errors of validation (`pkg/api/errors`).
- `names`: the rules of names, labels and annotations (`pkg/util/validation`).
- `objectmeta`: the metadata that the server sets, and its validation (`pkg/api/validation`).
- `selectors`: label and field selectors (`pkg/labels`, `pkg/fields`).
- `go_values`: values as Go's fmt prints them.
- `deep`: JSON that is nested more deeply than Python's recursion allows.
"""
