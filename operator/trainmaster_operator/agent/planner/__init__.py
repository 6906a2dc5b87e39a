"""The planner decides all of the agent's actions. It is pure: tables and random histories test it without processes.

The executor only repeats `state = update(state, event, now)`, then `state, actions = plan(state, now)` and performing
the actions, until the plan is empty. In this order:

- `state` is the agent's knowledge; `events` defines the possible events and what each changes.
- `plan` compares the desired state with the present state; its steps are in the order in which they must happen, and
  `actions` are what they request.
- `changes` contains the changes that several events share, and `continuing` moves ranks to the next attempt.
- `ranks` derives this worker's end from its ranks' ends, and decides when to signal them; `classification` finds the
  reason for a rank's end.
"""
