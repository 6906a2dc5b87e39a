"""The table names the test files of each module of `rendering`, here or in another folder of tests/.

| module | test files |
|---|---|
| `agent_source` | `test_layout`, `unit/controller/writing/test_agent_config_maps` |
| `engine` | `test_hostile`, `test_pod_overlay`, `test_engine` |
| `environment` | `test_golden`, `test_layout` |
| `gang_scheduling` | `test_golden`, `unit/reconciling/observed/test_gangs`, `unit/reconciling/policies/test_queueing` |
| `layout` | `test_layout` |
| `manifest` | `test_golden` |
| `render` | `test_pod_overlay`, `test_golden`, `test_hostile` |
| `settings` | `test_golden` |
| `stateful_set` | `test_golden`, `test_security_context` |
| `verified_agent` | `test_layout`, `processes/agent/test_zipapp` |
"""
