"""The table names the test files of each module of `local`, here or in another folder of tests/.

| module | test files |
|---|---|
| `images` | `processes/local/test_local_cluster`, `e2e/test_demo` |
| `running` | `cluster/test_sdk`, `e2e/test_demo` |
| `runs` | `cluster/test_sdk` |
"""
