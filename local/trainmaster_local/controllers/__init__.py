"""The controllers of the local cluster, each doing what kube-controller-manager's does.

A controller's decisions are pure functions of what it sees (`statefulset.plan`, `garbage.decide`); `loop.Controller`
runs them: informers say which object changed, a queue with back-off calls `reconcile(key)` for each, never twice at
once.
"""
