"""All requests to the API server and to pods' ports are sent from here.

Read `cluster` first: it defines the `Resource` types and the `Cluster` protocol, the only interface that the rest of
the controller uses; tests replace it by a scripted one. `errors` defines the API errors, and rewrites the API server's
messages about objects that don't fit their type. `client` is the real `Cluster`, over `kubernetes.aio`. `connection`
finds the API server and the credentials, for kopf too. `kept` lists the fields to keep of each type, and drops all
other fields while answers are decoded. `pod_http` sends HTTP requests to pods, which aren't trusted.
"""
