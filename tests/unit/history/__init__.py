"""The table names the test files of each module of `history`, here or in another folder of tests/.

| module | test files |
|---|---|
| `answers` | `test_answers`, `test_reading`, `processes/history/test_serving`, `processes/history/test_killed` |
| `drawing` | `test_answers`, `test_aging`, `test_metrics` |
| `figures` | `test_figures`, `test_aging`, `test_answers` |
| `names` | `test_metrics` |
| `recorder` | `test_full_disk`, `processes/history/test_killed`, `processes/history/test_serving` |
| `schema` | `test_schema`, `test_books` |
| `server` | `processes/history/test_serving`, `processes/history/test_said`, `processes/history/test_killed` |
| `settings` | `test_settings` |
| `statuses` | `test_attempts`, `test_answers` |
| `store` | `test_answers`, `processes/history/test_killed` |
| `upkeep` | `test_aging`, `test_trimming`, `test_books` |
| `viewers` | `test_viewers`, `test_places`, `processes/history/test_serving` |
"""
