"""The policies read the controller's snapshot of a job, and the facts that follow from it.

`snapshot` has the frozen values that the controller's store builds: job, pods, children, reports. `situation` brings
them together with the status: who the workers are, who is up, whose container has ended in which attempt; `members`
says which of their ranks are in the group;
`container_ends` says how often, and why. `lineup` says who of the pods trains, and which spare for whom.
`kueue_admission` says what Kueue has admitted of the job.
"""
