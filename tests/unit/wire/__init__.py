"""The table names the test files of each module of `wire`, here or in another folder of tests/.

| module | test files |
|---|---|
| `addresses` | `test_addresses` |
| `assignment` | `test_assignment` |
| `errors` | `test_assignment`, `test_hostile_lines` |
| `evidence` | `test_hostile_messages`, `test_stream` |
| `joining` | `test_stream`, `processes/agent/test_network` |
| `limits` | `test_limits` |
| `log_rules` | `test_log_rules` |
| `lines` | `test_hostile_lines`, `processes/controller/leaders/test_hostile_leaders` |
| `names` | `unit/rendering/test_golden` |
| `output` | `test_output`, `unit/agent/network/test_leader` |
| `ports` | `test_ports` |
| `progress` | `test_progress` |
| `reasons` | `test_limits`, `unit/reconciling/policies/test_failure_rules` |
| `recovery` | `test_recovery`, `test_stream` |
| `report` | `test_report` |
| `signing` | `unit/agent/test_forged_assignments`, `unit/controller/test_keys` |
| `states` | `test_report`, `test_stream` |
| `stream` | `test_stream` |
| `values` | `test_values`, `unit/api/test_hostile_messages` |
"""
