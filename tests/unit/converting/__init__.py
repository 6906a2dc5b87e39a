"""The table names the test files of each module of `converting`, here or in another folder of tests/.

| module | test files |
|---|---|
| `beside` | `test_job_set` |
| `commands` | `test_commands` |
| `conversion` | `test_conversion`, `unit/docs/test_migrating`, `unit/cli/test_convert` |
| `draft` | `test_conversion` |
| `failures` | `test_job_set` |
| `fields` | `test_conversion` |
| `groups` | `test_pytorch_job`, `test_job_set` |
| `job_set` | `test_job_set` |
| `merging` | `test_train_job` |
| `metadata` | `test_pytorch_job`, `test_train_job` |
| `pods` | `test_pods` |
| `program` | `test_pods` |
| `pytorch_job` | `test_pytorch_job` |
| `resources` | `test_pods` |
| `runtimes` | `test_train_job` |
| `train_job` | `test_train_job` |
"""
