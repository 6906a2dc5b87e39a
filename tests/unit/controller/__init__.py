"""The table names the test files of each module of `controller`, here or in another folder of tests/.

| module | test files |
|---|---|
| `app` | `test_app` |
| `lease` | `test_lease` |
| `reconciler` | `test_reconciler` |
| `main` | `test_main` |
| `settings` | `test_settings`, `test_main` |
| `wiring` | `test_app` |
| `workqueue` | `test_workqueue` |
| `apiserver/client` | `apiserver/test_pod_http`, `test_app` |
| `apiserver/cluster` | `test_lease`, `writing/test_children` |
| `apiserver/connection` | `test_app` |
| `apiserver/decoding` | `cache/test_kept`, `processes/controller/test_hostile_objects` |
| `apiserver/errors` | `apiserver/test_errors` |
| `apiserver/refusals` | `apiserver/test_refusals`, `cluster/test_refused_objects` |
| `apiserver/kept` | `cache/test_kept` |
| `apiserver/pod_http` | `apiserver/test_pod_http` |
| `cache/job_objects` | `cache/test_store`, `cache/test_unreadable`, `cache/test_large_jobs` |
| `cache/large_jobs` | `cache/test_large_jobs` |
| `cache/lookup_results` | `lookups/test_lookup` |
| `cache/records` | `cache/test_store`, `cache/test_pod_ownership` |
| `cache/store` | `cache/test_store` |
| `cache/unreadable` | `cache/test_unreadable` |
| `cache/views` | `cache/test_hostile_objects` |
| `cache/workload_view` | `cache/test_hostile_objects`, `lookups/test_kueue` |
| `keeping/evidence` | `keeping/test_evidence` |
| `keeping/last_output` | `keeping/test_last_output`, `writing/test_executor` |
| `keeping/logs` | `keeping/test_logs`, `writing/test_executor` |
| `keeping/owned_config_map` | `keeping/test_evidence`, `writing/test_executor` |
| `keeping/pod_logs` | `keeping/test_last_output`, `writing/test_executor` |
| `keeping/stacks` | `keeping/test_stacks` |
| `keys/agents_secrets` | `keys/test_signing_keys`, `writing/test_children` |
| `keys/rotation` | `processes/cli/test_keys` |
| `keys/signing_keys` | `keys/test_signing_keys` |
| `leaders/acknowledger` | `leaders/test_hostile_leaders`, `leaders/test_streams` |
| `leaders/budget` | `leaders/test_hostile_leaders` |
| `leaders/reach` | `apiserver/test_pod_http`, `leaders/test_hostile_leaders` |
| `leaders/stream` | `leaders/test_hostile_leaders` |
| `leaders/streams` | `leaders/test_streams` |
| `leaders/targets` | `leaders/test_targets` |
| `lookups/killed_containers` | `lookups/test_killed_containers` |
| `lookups/kueue` | `lookups/test_kueue` |
| `lookups/lookup` | `lookups/test_lookup` |
| `lookups/missing_pods` | `lookups/test_missing_pods` |
| `lookups/node_domains` | `lookups/test_node_domains` |
| `lookups/unseen_pods` | `lookups/test_unseen_pods` |
| `observability/health` | `test_app`, `processes/controller/observability/test_health` |
| `observability/job_metrics` | `observability/test_metrics`, `cluster/test_monitoring` |
| `observability/metrics` | `observability/test_metrics` |
| `observability/scrapers` | `observability/test_scrapers`, `test_app` |
| `recording/lines` | `recording/test_lines` |
| `recording/outbox` | `recording/test_outbox` |
| `recording/posting` | `processes/controller/recording/test_sender` |
| `recording/recorder` | `recording/test_recorder`, `cluster/test_recording` |
| `recording/sender` | `processes/controller/recording/test_sender` |
| `recording/writer_token` | `recording/test_writer_token` |
| `watching/gangs` | `watching/test_gangs` |
| `watching/kopf_thread` | `test_app` |
| `watching/resync` | `test_app` |
| `watching/watched` | `test_app`, `watching/test_gangs` |
| `watching/watcher` | `test_app` |
| `writing/agent_config_maps` | `writing/test_agent_config_maps`, `cluster/test_agent_config_maps` |
| `writing/children` | `writing/test_children` |
| `writing/events` | `unit/serving/test_log_formats`, `writing/test_executor` |
| `writing/executor` | `writing/test_executor` |
| `writing/lost_nodes` | `writing/test_lost_nodes` |
| `writing/status_patch` | `writing/test_status_patch` |
| `writing/workload_status` | `lookups/test_kueue` |
"""
