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
| `code/archive` | `code/test_archive` |
| `code/claims` | `unit/cli/test_dtj_uploads`, `processes/client/test_uploaded_code`, `cluster/test_code` |
| `code/places` | `cluster/test_code` |
| `code/secret_files` | `code/test_archive` |
| `code/scripts` | `code/test_scripts` |
| `code/submitting` | `cluster/test_code` |
| `diagnosis/capacity` | `diagnosis/test_capacity` |
| `diagnosis/endings` | `diagnosis/test_endings` |
| `diagnosis/failures` | `diagnosis/test_situations`, `diagnosis/test_own_program` |
| `diagnosis/pods` | `diagnosis/test_situations` |
| `diagnosis/queueing` | `diagnosis/test_situations` |
| `diagnosis/refusals` | `diagnosis/test_situations` |
| `diagnosis/running` | `diagnosis/test_situations` |
| `diagnosis/scheduling` | `diagnosis/test_situations` |
| `diagnosis/situation` | `diagnosis/test_situations` |
| `errors` | `test_jobs`, `test_transport` |
| `events` | `unit/cli/test_events` |
| `functions/bundle` | `functions/test_source` |
| `functions/handle` | `functions/test_training`, `test_view` |
| `functions/literals` | `functions/test_source` |
| `functions/source` | `functions/test_source` |
| `functions/training` | `functions/test_training`, `cluster/test_sdk` |
| `gathering` | `diagnosis/test_situations` |
| `history/accounts` | `processes/client/test_history_place` |
| `history/announcement` | `processes/client/test_history_place` |
| `history/answers` | `history/test_answers` |
| `history/checking` | `history/test_reading` |
| `history/connecting` | `processes/client/test_history` |
| `history/columns` | `history/test_columns` |
| `history/finding` | `history/test_finding` |
| `history/reading` | `history/test_reading` |
| `job` | `test_jobs` |
| `jobs` | `test_jobs`, `test_async_jobs` |
| `merging` | `test_merging` |
| `metrics` | `test_metrics`, `test_transport` |
| `suspending` | `test_suspending`, `unit/cli/test_dtj_suspend` |
| `output` | `test_jobs` |
| `permission` | `test_permission` |
| `proxies` | `test_proxies` |
| `read_only` | `processes/cli/test_mcp` |
| `server` | `test_server`, `test_permission` |
| `tls` | `test_server` |
| `transport` | `test_transport`, `test_server` |
| `view` | `test_view`, `unit/cli/test_dtj_status`, `unit/dashboard/test_board` |
| `watching` | `test_jobs`, `test_async_jobs` |
"""
