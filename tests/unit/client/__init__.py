"""The table names the test files of each module of `client`, here or in another folder of tests/.

| module | test files |
|---|---|
| `errors` | `test_jobs`, `test_transport` |
| `jobs` | `test_jobs` |
| `transport` | `test_transport` |
"""
