"""The table names the test files of each module of `client`, here or in another folder of tests/.

| module | test files |
|---|---|
| `answers` | `test_transport` |
| `authorization` | `test_server`, `test_plugin` |
| `errors` | `test_jobs`, `test_transport` |
| `jobs` | `test_jobs` |
| `proxies` | `test_proxies` |
| `server` | `test_server` |
| `tls` | `test_server` |
| `transport` | `test_transport`, `test_server` |
"""
