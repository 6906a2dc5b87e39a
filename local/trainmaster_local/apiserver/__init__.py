"""The API server of the local cluster: kube-apiserver's behaviour over objects in memory.

Read it in this order; the packages have the names of Kubernetes' own.

| module or package | what it does |
|---|---|
| `resources` | describes a type (names, schema, hooks for defaults, validation, columns); holds the served types |
| `api` | is the one path of every request, in process or over HTTP; `plans` prepares each type for it |
| `storage` | keeps objects and their revisions in memory, and lists and watches them |
| `writing` | creates, updates and deletes: admission, validation, preconditions, grace periods (the generic registry) |
| `patches` | merges patches, and keeps managedFields for server-side apply |
| `schema`, `cel` | apply structural schemas and CEL rules to objects |
| `crd` | serves CustomResourceDefinitions |
| `http` | speaks Kubernetes' REST protocol over HTTP |
| `discovery`, `printing` | answer discovery, OpenAPI and health, and print tables |
| `apimachinery` | provides what all of them use: errors, names, metadata, selectors |

The built-in types are in `trainmaster_local.kinds`. Nothing here imports them.
"""
