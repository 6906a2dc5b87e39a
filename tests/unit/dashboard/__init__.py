"""The table names the test files of each module of `dashboard`, here or in another folder of tests/.

| module | test files |
|---|---|
| `app` | `test_guards`, `test_list`, `test_job_page`, `cluster/test_dashboard_server` |
| `board` | `test_board` |
| `comparing` | `test_comparing`, `test_job_page` |
| `figures` | `test_seen`, `test_job_page` |
| `guards` | `test_guards`, `test_sessions`, `test_job_page` |
| `job_answers` | `test_job_page`, `cluster/test_dashboard_server` |
| `job_page` | `test_job_page` |
| `logs` | `test_job_page`, `cluster/test_dashboard_server` |
| `objects` | `test_sessions`, `test_job_page`, `test_list` |
| `tenants` | `test_sessions`, `test_hostile` |
| `reading` | `test_hostile`, `test_list`, `test_job_page` |
| `scopes` | `test_list` |
| `shapes` | `test_shapes` |
| `streams` | `test_board`, `test_list`, `test_guards` |
| `sessions` | `test_sessions`, `test_guards`, `test_job_page` |
"""
