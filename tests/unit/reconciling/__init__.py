"""The table names the test files of each module of `reconciling`, here or in another folder of tests/.

| module | test files |
|---|---|
| `decide` | `test_histories`, `test_scripted_histories`, `policies/test_lifecycle` |
| `decision` | `actions/test_children`, `test_histories` |
| `timers` | `policies/test_attempts`, `policies/test_lifecycle` |
| `transition` | `test_transition` |
| `actions/agent_config_map` | `actions/test_agent_config_map` |
| `actions/assignments` | `actions/test_assignments` |
| `actions/children` | `actions/test_children` |
| `actions/pod_group` | `actions/test_pod_group` |
| `actions/stacks` | `status/test_stacks` |
| `actions/stuck_pods` | `actions/test_stuck_pods` |
| `observed/container_ends` | `observed/test_killed_by_a_probe`, `policies/test_attempts` |
| `observed/kueue_admission` | `policies/test_queueing` |
| `observed/lineup` | `policies/test_spares`, `test_histories` |
| `observed/members` | `policies/test_continuing` |
| `observed/situation` | `policies/test_attempts`, `actions/test_silent_workers` |
| `observed/snapshot` | `test_histories`, `unit/controller/cache/test_store` |
| `policies/attempts` | `policies/test_attempts` |
| `policies/attribution` | `policies/test_attribution` |
| `policies/continuing` | `policies/test_continuing`, `test_histories`, `cluster/test_crash_consistency` |
| `policies/crash_loop_backoff` | `policies/test_crash_loop_backoff` |
| `policies/deadlines` | `policies/test_lifecycle`, `cluster/test_failures_lifecycle` |
| `policies/elastic` | `test_scripted_histories`, `actions/test_silent_workers`, `cluster/test_operator_nodes` |
| `policies/failure_rules` | `policies/test_failure_rules` |
| `policies/joining` | `policies/test_continuing`, `test_histories`, `cluster/test_crash_consistency` |
| `policies/opening` | `policies/test_attempts`, `test_histories` |
| `policies/quarantine` | `policies/test_quarantine` |
| `policies/queueing` | `policies/test_queueing` |
| `policies/replacement` | `policies/test_crash_loop_backoff`, `test_scripted_histories` |
| `policies/requests` | `policies/test_requests`, `test_histories` |
| `policies/scheduling_backoff` | `policies/test_scheduling_backoff`, `test_scripted_histories` |
| `policies/stand_in` | `policies/test_spares`, `cluster/test_spares` |
| `policies/startup` | `policies/test_startup` |
| `policies/success` | `policies/test_lifecycle`, `cluster/test_failures_policy` |
| `policies/suspension` | `policies/test_lifecycle`, `cluster/test_failures_run_policy` |
| `policies/topology` | `policies/test_topology` |
| `status/conditions` | `status/test_conditions` |
| `status/events` | `policies/test_crash_loop_backoff`, `test_histories` |
| `status/next_status` | `status/test_next_status` |
| `status/progress` | `status/test_progress` |
| `status/recovery` | `status/test_recovery` |
| `status/stacks` | `status/test_stacks` |
| `status/time_spent` | `status/test_time_spent` |
"""
