"""The planner decides what the agent does. It is pure: tables and random histories test it without any process.

The executor does nothing else than `state = update(state, event, now)`, then `plan(state, now)`, and after each action
`state = done(state, action, now)`, until the plan is empty. In this order:

- `state` is everything that the agent knows; `events` is what can happen, `actions` what can be done.
- `plan` compares what should be with what is; its steps have the order in which they must happen.
- `update` is what each event changes, `changes` what several of them do, and `continuing` how ranks continue in the
  next attempt.
- `ranks` decides how ranks' ends become this worker's, and when ranks are signalled; `classification` why a rank ended.
"""
