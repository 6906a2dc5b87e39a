"""These modules make up `trainmaster` and `kubectl dtj`: one tree of commands under two names.

| module | content |
|---|---|
| `main`, `dtj` | the two programs |
| `commands` | the commands, and the list of them: read it first to add one |
| `program` | the frame: help, wrong usage, options before a command, a process that ends quickly |
| `connection`, `connection_values` | `-n` and kubectl's other connection options; tab completion |
| `arguments`, `durations`, `output` | shared arguments: jobs, ranks, files, times; `-o`, and new files |
| `listing`, `show` | jobs as a table, a view and objects, once or watched; the view of one job in a terminal |
| `top`, `top_picture` | a running job: repeated readings, and its picture |
| `history` | a package: the recorded jobs, shown and exported |
| `logs`, `failed_logs` | all ranks' output as one stream; the log of the rank that failed first |
| `events`, `evidence` | events of jobs; kept evidence of attempts, and the stacks of running ranks |
| `why`, `assistant` | the diagnosis in plain text; the MCP server, which an assistant asks |
| `manifests`, `convert` | `validate`, `render` and `init`: jobs in files; other operators' jobs |
| `documents`, `yaml_values` | YAML and JSON with the place of every field, read and written as kubectl does |
| `submission` | the jobs that `submit` makes from flags and manifests |
| `demo`, `dashboard` | `trainmaster demo`; the process of `dashboard` and `open` |
| `settings_options` | options of `history serve`, made from the fields of its settings |
| `completion` | `kubectl_complete-dtj`, which kubectl asks for completions |
| `terminal`, `console` | all printing: others' texts can't control the terminal |
"""
