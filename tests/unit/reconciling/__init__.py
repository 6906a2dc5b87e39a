"""The table names the test files of each module of `reconciling`, here or in another folder of tests/.

| module | test files |
|---|---|
| `actions/assignments` | `actions/test_assignments` |
| `actions/children` | `actions/test_children`, `observed/test_gangs` |
| `actions/stuck_pods` | `actions/test_stuck_pods` |
| `decide` | `test_histories`, `test_scripted_histories`, `policies/test_lifecycle`, `policies/test_attempts` |
| `decision` | `actions/test_children`, `test_histories` |
| `observed/gangs` | `observed/test_gangs`, `policies/test_queueing` |
| `observed/spares` | `policies/test_spares`, `test_histories` |
| `observed/members` | `policies/test_continuing` |
| `observed/situation` | `policies/test_attempts`, `actions/test_stuck_pods` |
| `observed/snapshot` | `observed/test_killed_by_a_probe`, `test_histories`, `unit/controller/cache/test_store` |
| `policies/attempts` | `policies/test_attempts` |
| `policies/attribution` | `policies/test_attribution` |
| `policies/backoff` | `policies/test_backoff`, `test_scripted_histories` |
| `policies/continuing` | `policies/test_continuing`, `test_histories`, `cluster/test_crash_consistency` |
| `policies/elastic` | `test_scripted_histories`, `actions/test_stuck_pods`, `cluster/test_operator_nodes` |
| `policies/failure_rules` | `policies/test_failure_rules` |
| `policies/joining` | `policies/test_continuing`, `test_histories`, `cluster/test_crash_consistency` |
| `policies/lifecycle` | `policies/test_lifecycle`, `cluster/test_failures_lifecycle` |
| `policies/opening` | `policies/test_attempts`, `test_histories`, `policies/test_opening` |
| `policies/quarantine` | `policies/test_quarantine` |
| `policies/queueing` | `policies/test_queueing` |
| `policies/repeated` | `policies/test_repeated`, `test_histories` |
| `policies/requests` | `policies/test_requests`, `policies/test_stacks`, `test_histories` |
| `policies/scheduling_backoff` | `policies/test_scheduling_backoff`, `test_scripted_histories` |
| `policies/missing_workers` | `policies/test_spares`, `cluster/test_spares` |
| `policies/startup` | `policies/test_startup` |
| `status/doubts` | `status/test_doubts` |
| `status/events` | `policies/test_backoff`, `test_histories` |
| `status/next_status` | `status/test_next_status` |
| `status/progress` | `status/test_progress` |
| `status/time_spent` | `status/test_time_spent` |
| `transition` | `test_transition` |
"""
