"""The table names the test files of each module of `history`, here or in another folder of tests/.

| module | test files |
|---|---|
| `access` | `test_access`, `processes/history/test_serving` |
| `aging` | `test_aging` |
| `answers` | `test_answers`, `processes/history/test_serving` |
| `attempts` | `test_attempts` |
| `cells` | `test_aging`, `test_answers` |
| `curves` | `test_thinning`, `test_aging` |
| `drawing` | `test_answers` |
| `files` | `test_files` |
| `heat` | `test_thinning`, `test_aging` |
| `metrics` | `processes/history/test_serving` |
| `packing` | `test_packing` |
| `places` | `test_places`, `processes/history/test_serving` |
| `process` | `processes/history/test_said`, `processes/history/test_serving`, `processes/history/test_killed` |
| `queries` | `processes/history/test_serving` |
| `reading` | `test_reading`, `processes/history/test_serving`, `processes/history/test_killed` |
| `recorder` | `test_full_disk`, `processes/history/test_killed` |
| `samples` | `test_answers` |
| `schema` | `test_schema`, `test_books` |
| `server` | `processes/history/test_serving` |
| `settings` | `test_settings` |
| `store` | `test_answers`, `processes/history/test_killed` |
| `summary` | `test_answers` |
| `thinning` | `test_thinning` |
| `trimming` | `test_trimming`, `test_books` |
"""
