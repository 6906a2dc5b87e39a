"""The table names the test files of each module of `client`, here or in another folder of tests/.

| module | test files |
|---|---|
| `answers` | `test_transport` |
| `async_jobs` | `test_async_jobs`, `test_jobs` |
| `asynchronous` | `test_transport`, `processes/client/test_server` |
| `blocking` | `test_async_jobs`, `test_time_order` |
| `code/archive` | `code/test_archive` |
| `code/claims` | `unit/cli/test_dtj_uploads`, `processes/client/test_uploaded_code`, `cluster/test_code` |
| `code/scripts` | `code/test_scripts` |
| `code/storing` | `unit/cli/test_dtj_uploads`, `cluster/test_code` |
| `code/submitting` | `unit/cli/test_dtj_uploads`, `cluster/test_code` |
| `diagnosis/advice` | `diagnosis/test_advice` |
| `diagnosis/capacity` | `diagnosis/test_capacity` |
| `diagnosis/endings` | `diagnosis/test_endings` |
| `diagnosis/failures` | `diagnosis/test_situations`, `diagnosis/test_own_program` |
| `diagnosis/gangs` | `diagnosis/test_gangs`, `diagnosis/test_situations` |
| `diagnosis/operators` | `diagnosis/test_situations` |
| `diagnosis/pods` | `diagnosis/test_situations` |
| `diagnosis/queueing` | `diagnosis/test_situations` |
| `diagnosis/refusals` | `diagnosis/test_situations` |
| `diagnosis/running` | `diagnosis/test_situations` |
| `diagnosis/scheduling` | `diagnosis/test_situations` |
| `diagnosis/situation` | `diagnosis/test_situations` |
| `diagnosis/trouble` | `diagnosis/test_situations` |
| `errors` | `test_jobs`, `test_transport` |
| `functions` | `test_functions`, `test_function_sources`, `cluster/test_sdk` |
| `gathering` | `diagnosis/test_situations` |
| `history/answers` | `history/test_reading` |
| `history/finding` | `history/test_finding`, `history/test_errors`, `processes/client/test_history_place` |
| `history/reading` | `history/test_reading`, `history/test_columns`, `processes/client/test_history` |
| `job` | `test_jobs` |
| `jobs` | `test_jobs`, `test_async_jobs` |
| `log_reader` | `test_log_reader`, `unit/cli/test_following`, `cluster/test_logs` |
| `time_order` | `test_time_order` |
| `metrics` | `test_metrics`, `test_transport` |
| `objects` | `diagnosis/test_situations`, `unit/cli/test_dtj_uploads` |
| `operator_sign` | `test_operator_sign`, `unit/cli/test_health` |
| `output` | `test_jobs`, `test_log_reader` |
| `patience` | `test_patience`, `unit/cli/test_health` |
| `permission` | `test_permission` |
| `sentences` | `test_sentences`, `unit/cli/test_dtj_suspend`, `unit/cli/test_dtj_status` |
| `server` | `test_server`, `test_permission`, `processes/kubeconfig/test_plugin` |
| `transport` | `test_transport`, `processes/client/test_server`, `processes/cli/test_mcp` |
| `view` | `test_view`, `unit/cli/test_dtj_status`, `unit/dashboard/test_board` |
| `watching` | `test_jobs`, `test_async_jobs`, `unit/cli/test_events` |
"""
