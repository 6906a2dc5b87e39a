"""The table names the test files of each module of `cli`, here or in another folder of tests/.

| module | test files |
|---|---|
| `arguments` | `test_dtj`, `test_completion`, `test_following`, `test_dtj_evidence`, `test_manifests` |
| `assistant` | `test_mcp` |
| `commands/evidence` | `test_dtj`, `test_following`, `test_events`, `test_dtj_evidence`, `test_dtj_stacks` |
| `commands/files` | `test_init`, `test_manifests`, `test_convert` |
| `commands/history` | `history/test_history` |
| `commands/history_server` | `unit/history/test_settings`, `processes/history/test_serving` |
| `commands/jobs` | `test_dtj_status`, `test_output`, `test_hostile_text`, `test_why` |
| `commands/local` | `processes/local/test_local_cluster`, `e2e/test_readme` |
| `commands/pages` | `test_open`, `cluster/test_dashboard_server` |
| `commands/programs` | `test_program`, `processes/cli/test_keys`, `test_completion`, `test_mcp`, `e2e/test_demo` |
| `commands/steering` | `test_dtj_suspend`, `test_dtj_wait`, `cluster/test_code` |
| `commands/submit` | `test_submission`, `test_dtj_push`, `test_dtj_wait`, `cluster/test_code` |
| `completion` | `test_completion` |
| `connection` | `test_connection`, `test_dtj_wait`, `test_program`, `test_completion`, `cluster/test_command_line` |
| `console` | `test_hostile_text`, `test_dtj_status` |
| `convert` | `test_convert`, `test_manifests` |
| `dashboard` | `test_open`, `cluster/test_dashboard_server` |
| `demo` | `test_demo`, `e2e/test_demo` |
| `documents` | `test_documents`, `test_manifests` |
| `dtj` | `test_program`, `test_completion` |
| `events` | `test_events` |
| `evidence` | `test_dtj_evidence`, `test_hostile_text` |
| `health` | `test_health` |
| `history/page` | `history/test_page`, `history/test_history` |
| `history/showing` | `history/test_history`, `history/test_exporting` |
| `listing` | `test_dtj_status`, `test_dtj_watching` |
| `live` | `test_dtj_watching`, `test_hostile_text`, `cluster/test_command_line` |
| `logs` | `test_logs`, `test_following`, `test_hostile_text`, `cluster/test_logs` |
| `main` | `test_manifests`, `test_start` |
| `manifests` | `test_manifests`, `test_init`, `trainer/test_starter` |
| `output` | `test_output`, `test_init`, `test_manifests`, `history/test_exporting` |
| `program` | `test_program`, `test_start`, `test_process_end`, `test_dtj`, `test_dtj_wait` |
| `show` | `test_dtj_status` |
| `submission` | `test_submission` |
| `terminal` | `test_hostile_text` |
| `top` | `test_hostile_text`, `test_top` |
| `why` | `test_why`, `test_hostile_text` |
| `yaml_values` | `test_documents`, `test_manifests`, `test_output` |
"""
