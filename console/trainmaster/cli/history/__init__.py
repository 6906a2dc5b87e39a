"""`kubectl dtj history` shows what was recorded of jobs, and writes their curves to files.

| module | what is in it |
|---|---|
| `opening` | the history that the options name: over HTTP, or in a file |
| `showing` | what the command does, with the modules below |
| `listing` | recorded jobs as a table and as objects |
| `page` | one job: its lines of facts, its attempts, where its time went |
| `sparklines` | its curves in lines of blocks |
| `attempt` | what was kept of one attempt |
| `exporting` | its curves, and the figures of its ranks, in a file of CSV, JSON or Parquet |
"""
