"""The table names the test files of each module of `converting`, here or in another folder of tests/.

| module | test files |
|---|---|
| `commands` | `test_commands`, `test_pods` |
| `conversion` | `test_conversion`, `unit/docs/test_migrating`, `unit/cli/test_convert` |
| `failures` | `test_job_set` |
| `fields` | `test_conversion`, `test_train_job` |
| `groups` | `test_pytorch_job`, `test_job_set` |
| `job_set` | `test_job_set` |
| `metadata` | `test_pytorch_job`, `test_train_job` |
| `pods` | `test_pods` |
| `pytorch_job` | `test_pytorch_job` |
| `train_job` | `test_train_job` |
"""
