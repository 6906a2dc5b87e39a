"""The table names the test files of each module of `kubeconfig`, here or in another folder of tests/.

| module | test files |
|---|---|
| `addresses` | `test_selection`, `unit/client/history/test_finding` |
| `certificates` | `processes/cli/test_kubeconfigs` |
| `errors` | `test_selection` |
| `files` | `test_selection` |
| `plugin` | `test_plugin` |
| `selection` | `test_selection` |
"""
