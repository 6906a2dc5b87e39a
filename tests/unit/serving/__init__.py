"""The table names the test files of each module of `serving`, here or in another folder of tests/.

| module | test files |
|---|---|
| `connection` | `test_places`, `test_connections`, `test_attacks` |
| `logs` | `test_logs`, `test_connections`, `processes/dashboard/test_guards`, `processes/history/test_serving` |
| `server` | `test_connections`, `test_attacks`, `processes/controller/observability/test_endpoints` |
"""
