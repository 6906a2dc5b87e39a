"""The table names the test files of each module of `cli`, here or in another folder of tests/.

| module | test files |
|---|---|
| `assistant` | `test_mcp` |
| `commands/completion` | `test_completion` |
| `commands/convert` | `test_convert` |
| `commands/crd` | `test_program` |
| `commands/dashboard` | `test_open` |
| `commands/demo` | `e2e/test_demo` |
| `commands/events` | `test_events` |
| `commands/evidence` | `test_dtj_evidence` |
| `commands/history` | `history/test_history` |
| `commands/history_server` | `unit/history/test_settings`, `processes/history/test_serving` |
| `commands/init` | `test_init` |
| `commands/list` | `test_dtj_status`, `test_output` |
| `commands/local` | `processes/local/test_local_cluster`, `e2e/test_readme` |
| `commands/logs` | `test_dtj`, `test_following` |
| `commands/mcp` | `test_mcp` |
| `commands/operator` | `processes/cli/test_keys`, `processes/cli/test_kubeconfigs` |
| `commands/open` | `test_open`, `cluster/test_dashboard_server` |
| `commands/push` | `test_dtj_push`, `cluster/test_code` |
| `commands/render` | `test_manifests` |
| `commands/restart` | `cluster/test_code` |
| `commands/resume` | `test_dtj_suspend` |
| `commands/scale` | `test_dtj_suspend` |
| `commands/stacks` | `test_dtj_stacks`, `cluster/test_stacks` |
| `commands/status` | `test_dtj_status` |
| `commands/submit` | `test_submission`, `test_dtj_wait`, `cluster/test_code` |
| `commands/suspend` | `test_dtj_suspend` |
| `commands/top` | `test_hostile_text` |
| `commands/validate` | `test_manifests` |
| `commands/wait` | `test_dtj_wait` |
| `commands/why` | `test_why` |
| `completion` | `test_completion` |
| `columns` | `test_dtj_status` |
| `connection` | `test_connection`, `test_program` |
| `connection_values` | `test_completion`, `cluster/test_command_line` |
| `console` | `test_hostile_text` |
| `convert` | `test_convert` |
| `dashboard` | `test_open`, `cluster/test_dashboard_server` |
| `demo` | `test_demo`, `e2e/test_demo` |
| `documents` | `test_documents`, `test_manifests` |
| `dtj` | `test_program`, `test_completion` |
| `durations` | `test_dtj_wait` |
| `events_shown` | `test_events`, `test_hostile_text` |
| `events` | `test_events` |
| `evidence` | `test_dtj_evidence`, `test_hostile_text` |
| `file_names` | `test_manifests` |
| `history/page` | `history/test_page`, `history/test_history` |
| `history/showing` | `history/test_history`, `history/test_exporting` |
| `init` | `test_init`, `trainer/test_starter` |
| `job_parts` | `test_following`, `test_dtj_evidence` |
| `job_names` | `test_dtj`, `test_completion` |
| `listing` | `test_dtj_status`, `test_dtj_watching` |
| `logs/failed` | `cluster/test_logs`, `test_hostile_text` |
| `logs/following` | `test_following` |
| `logs/merging` | `logs/test_merging` |
| `logs/options` | `test_following`, `cluster/test_logs` |
| `logs/printed` | `test_following`, `cluster/test_logs` |
| `logs/printing` | `logs/test_printing` |
| `logs/selection` | `logs/test_selection` |
| `logs/sources` | `test_following` |
| `main` | `test_manifests`, `test_start` |
| `new_files` | `test_init`, `test_manifests`, `history/test_exporting` |
| `manifests` | `test_manifests` |
| `other_kinds` | `test_manifests` |
| `output` | `test_output` |
| `process` | `test_process_end` |
| `program` | `test_program`, `test_start` |
| `settings_options` | `unit/history/test_settings`, `test_open` |
| `show` | `test_dtj_status` |
| `stacks` | `test_dtj_stacks` |
| `submission` | `test_submission` |
| `terminal` | `test_hostile_text` |
| `top/asking` | `top/test_figures` |
| `top/figures` | `top/test_figures` |
| `top/live` | `test_hostile_text` |
| `top/view` | `top/test_figures` |
| `watching` | `test_dtj_watching`, `test_hostile_text` |
| `why` | `test_why`, `test_hostile_text` |
| `wrong_values` | `test_dtj`, `test_dtj_wait` |
| `yaml_messages` | `test_documents` |
| `yaml_output` | `test_manifests`, `test_output` |
| `yaml_scalars` | `test_documents` |
| `yaml_values` | `test_documents` |
"""
