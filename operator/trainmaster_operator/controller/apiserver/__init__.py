"""The operator sends all requests to the API server, and to pods' ports, from here.

Read `cluster` first: the `Resource` types and the `Cluster` protocol, the only interface that the rest of the
controller knows; tests replace it by a scripted one. `errors` is the tree of what can go wrong, with the sentences for
objects that don't fit their type. `client` is the real `Cluster`, over `kubernetes.aio`; `connection` finds the API
server and the credentials, for kopf too. `kept` says which fields of each type are kept, and decodes answers to them.
`pod_http` is HTTP with pods, which aren't trusted.
"""
