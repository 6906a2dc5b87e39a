"""The table names the test files of each module of `rendering`, here or in another folder of tests/.

| module | test files |
|---|---|
| `accelerators` | `test_golden` |
| `agent_source` | `test_layout`, `unit/controller/writing/test_agent_config_maps` |
| `child` | `test_golden` |
| `engine` | `test_hostile`, `test_pod_overlay` |
| `environment` | `test_golden`, `test_layout` |
| `grace_periods` | `test_layout` |
| `layout` | `test_layout` |
| `manifest` | `test_golden` |
| `paths` | `test_golden` |
| `pod_group` | `test_golden`, `unit/reconciling/actions/test_pod_group` |
| `pod_overlay` | `test_pod_overlay` |
| `render` | `test_golden`, `test_hostile` |
| `settings` | `test_golden` |
| `stateful_set` | `test_golden`, `test_security_context` |
| `training_text` | `test_training_text` |
| `verified_agent` | `test_layout`, `processes/agent/test_zipapp` |
| `workload` | `test_golden`, `unit/reconciling/policies/test_queueing` |
"""
