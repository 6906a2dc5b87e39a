"""The table names the test files of each module of `controller`, here or in another folder of tests/.

| module | test files |
|---|---|
| `apiserver/client` | `apiserver/test_pod_http`, `test_app` |
| `apiserver/cluster` | `test_lease`, `writing/test_children` |
| `apiserver/connection` | `test_app` |
| `apiserver/errors` | `apiserver/test_errors`, `cluster/test_refused_objects` |
| `apiserver/kept` | `apiserver/test_kept`, `processes/controller/test_hostile_objects` |
| `apiserver/pod_http` | `apiserver/test_pod_http` |
| `app` | `test_app` |
| `background` | `test_app`, `recording/test_recorder` |
| `cache/job_objects` | `cache/test_store`, `cache/test_unreadable`, `cache/test_large_jobs` |
| `cache/large_jobs` | `cache/test_large_jobs` |
| `cache/records` | `cache/test_store`, `cache/test_pod_ownership`, `test_lookups` |
| `cache/store` | `cache/test_store` |
| `cache/views` | `cache/test_hostile_objects`, `test_lookups` |
| `keeping/config_maps` | `keeping/test_evidence`, `keeping/test_stacks`, `writing/test_executor` |
| `keeping/evidence` | `keeping/test_evidence` |
| `keeping/ending_pods` | `keeping/test_ending_pods`, `writing/test_executor` |
| `keeping/logs` | `keeping/test_logs`, `keeping/test_ending_pods`, `writing/test_executor` |
| `keeping/stacks` | `keeping/test_stacks` |
| `keys` | `test_keys`, `writing/test_children`, `processes/cli/test_keys` |
| `leaders/streams` | `leaders/test_hostile_leaders`, `leaders/test_streams` |
| `leaders/targets` | `leaders/test_targets`, `apiserver/test_pod_http`, `leaders/test_hostile_leaders` |
| `lease` | `test_lease` |
| `lookups` | `test_lookups` |
| `main` | `test_main` |
| `observability/endpoints` | `observability/test_endpoints`, `test_app` |
| `observability/metrics` | `observability/test_metrics`, `cluster/test_monitoring` |
| `reconciler` | `test_reconciler` |
| `recording/outbox` | `recording/test_outbox` |
| `recording/recorder` | `recording/test_recorder`, `cluster/test_recording` |
| `recording/sender` | `recording/test_sender` |
| `settings` | `test_settings`, `test_main` |
| `watching/gangs` | `watching/test_gangs` |
| `watching/resync` | `test_app`, `watching/test_gangs` |
| `watching/watcher` | `test_app` |
| `wiring` | `test_app` |
| `workqueue` | `test_workqueue` |
| `writing/agent_config_maps` | `writing/test_agent_config_maps`, `cluster/test_agent_config_maps` |
| `writing/children` | `writing/test_children` |
| `writing/executor` | `writing/test_executor`, `writing/test_lost_nodes` |
| `writing/status` | `writing/test_status`, `writing/test_executor`, `unit/serving/test_logs`, `test_lookups` |
"""
