"""Structural schemas (apiextensions-apiserver `pkg/apiserver/schema`).

- `structure`: reads a schema: its fields, and how lists and maps merge. Read it first.
- `pruning`, `defaulting`, `validation`: apply a schema to an object, in the order of a write.
- `structural`: checks that the schema of a CustomResourceDefinition is structural.
- `official`: the schemas of Kubernetes' own types, from its OpenAPI documents.
"""
