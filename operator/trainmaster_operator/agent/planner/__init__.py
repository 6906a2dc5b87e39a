"""The planner decides all of the agent's actions. It is pure: tables and random histories test it without processes.

The executor only repeats `state = update(state, event, now)`, then `plan(state, now)`, and after each action
`state = done(state, action, now)`, until the plan is empty. In this order:

- `state` is the agent's knowledge; `events` defines the possible events, and `actions` the possible actions.
- `plan` compares the desired state with the present state; its steps are in the order in which they must happen.
- `update` applies each event, `changes` contains the changes that several events share, and `continuing` moves ranks to
  the next attempt.
- `ranks` derives this worker's end from its ranks' ends, and decides when to signal them; `classification` finds the
  reason for a rank's end.
"""
