"""`kubectl dtj top` shows jobs that run, as they run.

| module | what is in it |
|---|---|
| `figures` | what the ranks of a job report of themselves: the slowest and fastest of them, and how they are spread |
| `asking` | the workers are asked, through the API server; and everything else that the picture shows |
| `view` | the picture of one job, and the rows of several |
| `live` | the picture in a terminal, drawn anew when something changes |
"""
