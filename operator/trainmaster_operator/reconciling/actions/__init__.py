"""Computes the actions of a decision, which follow from the status alone.

`assignments` decides what the agents run, and `children` decides which manifests are applied. `stuck_pods` deletes pods
that nothing else would delete, because their node is lost or their agent doesn't answer.
"""
