"""The table names the test files of each module of `client`, here or in another folder of tests/.

| module | test files |
|---|---|
| `all_workers` | `test_all_workers`, `cluster/test_logs` |
| `answers` | `test_transport` |
| `arguments` | `test_arguments` |
| `arrivals` | `test_merging`, `test_transport` |
| `async_jobs` | `test_async_jobs`, `test_jobs` |
| `asynchronous` | `test_transport`, `test_server` |
| `authorization` | `test_server`, `processes/kubeconfig/test_plugin` |
| `blocking` | `test_async_jobs` |
| `containers` | `test_all_workers`, `unit/cli/test_following` |
| `continuing` | `unit/cli/test_dtj_status`, `diagnosis/test_situations` |
| `diagnosis/claims` | `diagnosis/test_situations` |
| `diagnosis/containers` | `diagnosis/test_situations` |
| `diagnosis/continuing` | `diagnosis/test_situations` |
| `diagnosis/diagnose` | `diagnosis/test_situations` |
| `diagnosis/endings` | `diagnosis/test_endings` |
| `diagnosis/failures` | `diagnosis/test_situations` |
| `diagnosis/finding` | `diagnosis/test_situations` |
| `diagnosis/gangs` | `diagnosis/test_situations` |
| `diagnosis/hangs` | `diagnosis/test_situations` |
| `diagnosis/images` | `diagnosis/test_situations` |
| `diagnosis/nodes` | `diagnosis/test_situations` |
| `diagnosis/objects` | `diagnosis/test_situations` |
| `diagnosis/queueing` | `diagnosis/test_situations` |
| `diagnosis/quotas` | `diagnosis/test_situations` |
| `diagnosis/refusals` | `diagnosis/test_situations` |
| `diagnosis/refused_pods` | `diagnosis/test_situations` |
| `diagnosis/room` | `diagnosis/test_room` |
| `diagnosis/scheduling` | `diagnosis/test_situations` |
| `diagnosis/situation` | `diagnosis/test_situations` |
| `diagnosis/slowness` | `diagnosis/test_situations` |
| `diagnosis/starting` | `diagnosis/test_situations` |
| `diagnosis/unserved` | `diagnosis/test_situations` |
| `diagnosis/volumes` | `diagnosis/test_situations` |
| `diagnosis/waiting_pods` | `diagnosis/test_situations` |
| `diagnosis/words` | `diagnosis/test_words` |
| `code/archive` | `code/test_archive` |
| `code/claims` | `unit/cli/test_dtj_uploads`, `processes/client/test_uploaded_code`, `cluster/test_code` |
| `code/places` | `cluster/test_code` |
| `code/secret_files` | `code/test_archive` |
| `code/scripts` | `code/test_scripts` |
| `code/submitting` | `cluster/test_code` |
| `errors` | `test_jobs`, `test_transport` |
| `events` | `unit/cli/test_events` |
| `functions/bundle` | `functions/test_source` |
| `functions/handle` | `functions/test_training`, `notebook/test_page` |
| `functions/literals` | `functions/test_source` |
| `functions/source` | `functions/test_source` |
| `functions/training` | `functions/test_training`, `cluster/test_sdk` |
| `gathering` | `diagnosis/test_situations` |
| `history/answers` | `history/test_reading` |
| `history/finding` | `history/test_finding`, `history/test_errors`, `processes/client/test_history_place` |
| `history/reading` | `history/test_reading`, `history/test_columns`, `processes/client/test_history` |
| `job` | `test_jobs` |
| `jobs` | `test_jobs`, `test_async_jobs` |
| `merging` | `test_merging` |
| `metrics` | `test_metrics`, `test_transport` |
| `suspending` | `test_suspending`, `unit/cli/test_dtj_suspend` |
| `notebook/page` | `notebook/test_page` |
| `notebook/widget` | `processes/client/test_widget` |
| `output` | `test_jobs` |
| `permission` | `test_permission` |
| `proxies` | `test_proxies` |
| `read_only` | `processes/cli/test_mcp` |
| `server` | `test_server`, `test_permission` |
| `tls` | `test_server` |
| `transport` | `test_transport`, `test_server` |
| `watching` | `test_jobs`, `test_async_jobs` |
"""
