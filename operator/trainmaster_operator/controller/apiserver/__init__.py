"""All requests to the API server, and to pods' ports, are sent from here.

Read `cluster` first: the `Resource` types and the `Cluster` protocol, which is all that the rest of the controller
knows; tests put a scripted one in its place. `errors` is the tree of what can go wrong, with `refusals` for the
sentences on what doesn't fit a type. `client` is the real `Cluster`,
over `kubernetes.aio`; `connection` finds the API server and the credentials, for kopf too. `decoding` decodes
answers so that one object costs only itself: it keeps the fields that `kept` names for each type. `pod_http` is HTTP
with pods, which aren't trusted.
"""
