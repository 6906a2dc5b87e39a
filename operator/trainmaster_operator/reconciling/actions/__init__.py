"""The actions of a decision. They follow from the status alone, however it came about.

`assignments` decides what the agents run, `children` which manifests are applied, and `stuck_pods` which pods are
deleted because nobody else would: their node is lost, or their agent doesn't answer.
"""
