"""CustomResourceDefinitions and their structural schemas.

`crd` turns a definition into types that are served, and `crd_schema` is the schema of definitions themselves.
`structural` says whether a definition's schema is one that Kubernetes accepts, `structure` reads it, and `pruning`,
`defaulting` and `validation` apply it to objects, in this order.
"""
