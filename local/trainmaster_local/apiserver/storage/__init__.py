"""This package stores objects in memory, lists them and watches them (k8s.io/apiserver `pkg/storage`).

Read `store` first: it keeps objects, numbers their revisions and remembers changes until they are compacted. `listing`
reads it in pages with continue tokens, `watching` turns its changes into the events of a watch.
"""
