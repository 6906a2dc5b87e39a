"""The table names the test files of each module of `client`, here or in another folder of tests/.

| module | test files |
|---|---|
| `answers` | `test_transport` |
| `async_jobs` | `test_async_jobs`, `test_jobs` |
| `asynchronous` | `test_transport`, `test_server` |
| `authorization` | `test_server`, `processes/kubeconfig/test_plugin` |
| `blocking` | `test_async_jobs` |
| `errors` | `test_jobs`, `test_transport` |
| `events` | `unit/cli/test_events` |
| `job` | `test_jobs` |
| `jobs` | `test_jobs`, `test_async_jobs` |
| `metrics` | `test_metrics`, `test_transport` |
| `output` | `test_jobs` |
| `proxies` | `test_proxies` |
| `server` | `test_server` |
| `tls` | `test_server` |
| `transport` | `test_transport`, `test_server` |
| `watching` | `test_jobs`, `test_async_jobs` |
"""
