"""`definitions` validates CustomResourceDefinitions and serves their types; `schema` is their own schema."""
