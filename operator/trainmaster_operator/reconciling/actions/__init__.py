"""The actions of a decision follow from the status alone, however it was reached.

`assignments` decides what the agents run, `children` which manifests are applied, and `stuck_pods` which pods are
deleted because nothing else would delete them: their node is lost, or their agent doesn't answer.
"""
