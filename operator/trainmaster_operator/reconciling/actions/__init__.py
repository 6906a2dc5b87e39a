"""The actions of a decision, which follow from the status alone, however it came about.

`assignments` says what the agents are to run, `children` which manifests have to be applied (rendering and hashes),
`pod_group` when a gang's PodGroup is there, and `agent_config_map` when the agent that pods wait for is looked for.
`stuck_pods` deletes pods that nobody else would: those on a lost node, and those whose agent doesn't answer.
`stacks` asks for the stacks of all ranks.
"""
