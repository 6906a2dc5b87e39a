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
| `functions/bundle` | `functions/test_source` |
| `functions/handle` | `functions/test_training`, `notebook/test_page` |
| `functions/literals` | `functions/test_source` |
| `functions/mounting` | `functions/test_training`, `cluster/test_sdk` |
| `functions/source` | `functions/test_source` |
| `functions/training` | `functions/test_training`, `cluster/test_sdk` |
| `job` | `test_jobs` |
| `jobs` | `test_jobs`, `test_async_jobs` |
| `metrics` | `test_metrics`, `test_transport` |
| `notebook/page` | `notebook/test_page` |
| `notebook/widget` | `processes/client/test_widget` |
| `output` | `test_jobs` |
| `proxies` | `test_proxies` |
| `server` | `test_server` |
| `tls` | `test_server` |
| `transport` | `test_transport`, `test_server` |
| `watching` | `test_jobs`, `test_async_jobs` |
"""
