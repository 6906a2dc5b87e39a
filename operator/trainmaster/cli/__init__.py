"""`trainmaster` and `kubectl-dtj` are these modules. Commands import what they need when they run: `--help` is quick.

| module | what is in it |
|---|---|
| `main` | `trainmaster`: its commands; read it first |
| `operator`, `settings_options` | `trainmaster operator run`, its options made from the settings of `controller` |
| `keys` | `trainmaster operator keys` |
| `local`, `demo`, `local_images` | `trainmaster local` and `… demo`; and the images that the embedded cluster has |
| `manifests`, `other_kinds` | `trainmaster validate` and `… render`: jobs in files, and what is none |
| `documents` | YAML and JSON with the place of every field, read as kubectl does by the `yaml_…` modules |
| `yaml_values`, `yaml_scalars`, `yaml_messages` | values of nodes, of plain scalars; sentences on what isn't YAML |
| `dtj`, `show`, `evidence` | `kubectl dtj status`, `logs`, `evidence`, `wait` …; how a job and its evidence are shown |
| `following`, `watching` | `kubectl dtj logs`, and followed; `… status --watch`, in a terminal and into a pipe |
| `completion` | tab completion of `kubectl dtj` |
| `terminal`, `console` | the only ways to print: texts of others can't command the terminal |
| `wrong_values` | sentences on values that an option can't have |
"""
