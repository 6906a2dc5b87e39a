"""The table names the test files of each module of `dashboard`, here or in another folder of tests/.

| module | test files |
|---|---|
| `access` | `test_sessions` |
| `app` | `test_guards`, `test_list`, `test_job_page`, `cluster/test_dashboard_server` |
| `board` | `test_board` |
| `encoding` | `test_board` |
| `errors` | `test_guards` |
| `figures` | `test_job_page` |
| `guards` | `test_guards` |
| `history` | `test_job_page` |
| `job_answers` | `test_job_page`, `test_shapes`, `test_hostile`, `cluster/test_dashboard_server` |
| `job_page` | `test_job_page`, `test_seen` |
| `launch` | `test_guards`, `test_sessions` |
| `logs` | `test_job_page`, `cluster/test_dashboard_server` |
| `nodes` | `test_sessions`, `test_list` |
| `objects` | `test_sessions`, `test_job_page` |
| `parameters` | `test_job_page`, `test_guards` |
| `parties` | `test_sessions`, `test_hostile` |
| `reading` | `test_hostile`, `test_list`, `test_job_page` |
| `scopes` | `test_list` |
| `shapes` | `test_shapes` |
| `static_files` | `test_guards` |
| `streams` | `test_board`, `test_list` |
| `viewers` | `test_sessions`, `test_guards` |
"""
