"""The table names the test files of each module of `kubeconfig`, here or in another folder of tests/.

| module | test files |
|---|---|
| `errors` | `test_selection`, `unit/client/history/test_finding`, `processes/cli/test_kubeconfigs` |
| `plugin` | `test_plugin` |
| `selection` | `test_selection` |
"""
