"""Kubernetes' REST protocol: requests come in at `server`, and `verbs` answers those for resources.

| to read | what it does |
|---|---|
| `server`, `routes` | the aiohttp server; method and path become a `Route` |
| `auth`, `access` | the protocols of authentication and authorization; impersonation |
| `verbs`, `parameters` | get, list, watch and writes of a resource; query parameters become options |
| `codec`, `answers` | bodies in and out; objects, lists and events in the form that was asked for |
| `tables`, `jsonpath` | what `kubectl get` prints |
| `descriptions`, `discovery`, `openapi` | what the server says of itself |
| `faults` | requests that are made slow or fail, for tests |
"""
