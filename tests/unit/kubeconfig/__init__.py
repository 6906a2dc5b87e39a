"""The table names the test files of each module of `kubeconfig`, here or in another folder of tests/.

| module | test files |
|---|---|
| `certificates` | `processes/cli/test_kubeconfigs` |
| `errors` | `test_selection` |
| `files` | `test_selection` |
| `plugin` | `test_plugin` |
| `selection` | `test_selection` |
"""
