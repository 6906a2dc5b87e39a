"""These modules make up `trainmaster` and `kubectl dtj`: one tree of commands under two names.

| module | content |
|---|---|
| `main`, `dtj` | the two programs |
| `commands` | the commands and their list; the package's docstring explains how to add a command |
| `program` | what all commands share: help, usage errors, options before a command, quick exit |
| `connection` | `-n` and kubectl's other connection options; tab completion; durations |
| `arguments`, `output` | shared arguments: jobs, ranks, files, times; `-o`, and new files |
| `listing`, `show` | jobs as a table, as objects or watched; the view of one job in a terminal |
| `live`, `top` | redrawing of pictures that change; the live view of running jobs |
| `health` | sentences beside jobs about an API server or an operator that is silent; waits that outlast an outage |
| `history` | a package: the recorded jobs, shown and exported |
| `logs` | all ranks' output as one stream, or the log of the rank that failed first |
| `events`, `evidence` | events of jobs; evidence of failed attempts, and the stacks of running ranks |
| `why`, `assistant` | the diagnosis in plain text; the MCP server for assistants |
| `manifests`, `convert` | jobs in files (`validate`, `render`, `init`); conversion of other operators' jobs |
| `documents`, `yaml_values` | YAML and JSON with the position of every field, read and written as kubectl does |
| `submission` | the jobs that `submit` makes from flags and manifests |
| `demo`, `dashboard` | `trainmaster demo`; the server process behind `dashboard` and `open` |
| `completion` | `kubectl_complete-dtj`, which kubectl asks for completions |
| `terminal`, `console` | all printing, so that untrusted texts can't control the terminal |
"""
