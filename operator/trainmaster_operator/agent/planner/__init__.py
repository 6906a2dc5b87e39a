"""The planner decides all of the agent's actions. It is pure: tables and random histories test it without processes.

For each event, the executor calls `state = update(state, event, now)`. Then it calls
`state, actions = plan(state, now)` and performs the actions, until the plan is empty. Read the modules in this order:

- `state` is the agent's knowledge; `events` defines the possible events and the changes that each makes.
- `plan` compares the desired state with the present state. Its steps are in the order in which they must happen, and
  they request `actions`.
- `changes` contains the changes that several events share, and `continuing` moves ranks to the next attempt.
- `ranks` derives this worker's end from its ranks' ends, and decides when to signal them; `classification` finds the
  reason for a rank's end.
"""
