"""This package forms the group of ranks; read it in this order.

1. `world`: a rank's place in the group, its collectives, and joining and leaving the group. `device`: the rank's device
   and backend.
2. `serialization` encodes the messages that ranks exchange, without pickle.
3. `preflight` finds ranks that run different code, before the first collective.
4. `watchdog` names the rank that hangs, if there is no agent.
5. `diagnostics` provides data for the agent: stacks, torch's flight recorder, and the ranks' environment.
"""
