"""Holds the observations of a job, and derives facts from them.

`snapshot` has the frozen values that the controller's store builds: job, pods, children, reports. `situation` combines
them with the status: the workers, who is up, and which container ended in which attempt. `members` says which ranks are
in the group, `lineup` which pods train and which are spares, and `gangs` what a gang scheduler or Kueue has granted.
"""
