"""The table names the test files of each module of `wire`, here or in another folder of tests/.

| module | test files |
|---|---|
| `assignment` | `test_assignment` |
| `joining` | `test_stream`, `processes/agent/test_network` |
| `limits` | `test_limits` |
| `log_rules` | `test_log_rules` |
| `names` | `test_names`, `unit/rendering/test_golden` |
| `ranks` | `test_ranks`, `test_hostile_messages`, `test_stream` |
| `report` | `test_report`, `test_limits`, `unit/reconciling/policies/test_failure_rules` |
| `signing` | `unit/agent/test_forged_assignments`, `unit/controller/test_keys` |
| `stream` | `test_stream`, `test_hostile_lines`, `processes/controller/leaders/test_hostile_leaders` |
| `system` | `test_stream` |
| `tracebacks` | `test_tracebacks` |
| `values` | `test_values`, `unit/api/test_hostile_messages` |
"""
