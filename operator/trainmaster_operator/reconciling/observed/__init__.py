"""Holds the observations of a job, and derives facts from them.

`snapshot` defines the frozen values that the controller's store builds: job, pods, children, reports. `situation`
combines these values with the status into facts: the workers, the workers that are up, and the attempt to which each
container's end belongs. `members` lists the ranks in the group. `spares` decides which pods train and which are spares.
`gangs` reads the admission by Kueue.
"""
