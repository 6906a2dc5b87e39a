"""All requests to the API server and to pods' ports are sent from here.

Read `cluster` first: the `Resource` types and the `Cluster` protocol, the only interface that the rest of the
controller knows; tests replace it by a scripted one. `errors` is the tree of API errors, with the sentences for objects
that don't fit their type. `client` is the real `Cluster`, over `kubernetes.aio`; `connection` finds the API server and
the credentials, for kopf too. `kept` lists the fields that are kept of each type, and decodes answers to them.
`pod_http` is HTTP with pods, which aren't trusted.
"""
