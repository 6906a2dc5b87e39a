"""This package serves Kubernetes' REST protocol over HTTP (k8s.io/apiserver `pkg/endpoints`).

Its modules, in the order of a request:

- `server`: passes each request through the modules below.
- `routes`: parses the method and the path; `access` and `auth` authenticate and authorize the user.
- `faults`: delays or fails requests on purpose, for tests.
- `verbs`: get, list, watch, create, update, patch and delete of a resource; `parameters` reads their query.
- `codec` and `protobuf`: decode bodies and negotiate the form of the answer; `answers` encodes it. `yaml_bodies`
  decodes the configurations of server-side apply.
"""
