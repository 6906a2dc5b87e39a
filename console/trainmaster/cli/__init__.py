"""`trainmaster` and `kubectl dtj` are these modules: one tree of commands by two names.

| module | what is in it |
|---|---|
| `main`, `dtj` | the two programs |
| `commands` | a module for each command, and the list of them: read it first to add one |
| `program` | the frame: help, wrong usage, options before a command, completion's words |
| `process` | a command's process: no garbage collection at its start, a quick end |
| `connection`, `output`, `job_names`, `file_names`, `durations` | what commands share: `-n`, `-o`, names, times |
| `job_parts` | workers, ranks and attempts that a job doesn't have are refused |
| `wrong_values` | sentences on values that an option can't have |
| `listing`, `show`, `columns`, `watching` | jobs as a table, a view and objects; followed, in a terminal and a pipe |
| `history` | a package: what was recorded of jobs, shown and exported |
| `logs`, `failed_logs` | all ranks' output as one stream; the log of the rank that failed first |
| `top` | a package: a job as it runs |
| `events`, `evidence` | what happened to jobs; what was kept of attempts, and the stacks of running ranks |
| `why`, `assistant` | the diagnosis as a person reads it; the MCP server, which an assistant asks |
| `manifests`, `other_kinds`, `yaml_output` | `validate` and `render`: jobs in files, and what is none |
| `submission` | the jobs that `submit` makes of flags and manifests |
| `convert` | jobs of other operators' manifests, and a line for each field of these |
| `init`, `new_files` | a job and a script to begin with, from `starters/`; how commands write files |
| `documents` | YAML and JSON with the place of every field, read as kubectl does by the `yaml_…` modules |
| `yaml_values`, `yaml_scalars`, `yaml_messages` | values of nodes, of plain scalars; sentences on what isn't YAML |
| `demo` | `trainmaster demo` |
| `dashboard` | the process of `dashboard` and `open`: it serves, and brings the page to the browser |
| `settings_options` | options of `history serve` and `dashboard`, made from the fields of their settings |
| `completion`, `connection_values` | `kubectl_complete-dtj`, which kubectl asks; values that Tab completes |
| `terminal`, `console` | the only ways to print: texts of others can't command the terminal |
"""
