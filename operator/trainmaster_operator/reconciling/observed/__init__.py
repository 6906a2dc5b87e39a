"""Holds the observations of a job, and derives facts from them.

`snapshot` has the frozen values that the controller's store builds: job, pods, children, reports. `situation` combines
them with the status: the workers, the workers that are up, and which container ended in which attempt. `members` lists
the ranks in the group, `lineup` which pods train and which are spares, and `gangs` the grants of a gang scheduler or
Kueue.
"""
