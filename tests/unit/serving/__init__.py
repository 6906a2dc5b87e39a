"""The table names the test files of each module of `serving`, here or in another folder of tests/.

| module | test files |
|---|---|
| `app` | `test_connections`, `test_attacks` |
| `connection` | `test_connections`, `test_attacks` |
| `exposition` | `test_connections`, `processes/controller/observability/test_health` |
| `log` | `test_connections`, `processes/dashboard/test_guards`, `processes/history/test_serving` |
| `log_formats` | `test_log_formats` |
| `places` | `test_places`, `test_attacks` |
| `server` | `test_connections`, `test_attacks` |
"""
