"""CustomResourceDefinitions: `definitions` validates them and serves their types, `schema` is their own schema."""
