"""Structural schemas: `structure` reads them; `pruning`, `defaulting` and `validation` apply them to objects."""
