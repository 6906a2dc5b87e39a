"""`kubectl dtj logs` prints the output of all ranks as one stream, whatever became of the containers that had it.

| module | what is in it |
|---|---|
| `selection` | which lines are wanted; read it first; its lines are `client.merging`'s |
| `sources` | where a worker's output is: its pod's containers, and what the operator kept |
| `merging` | streams become one in the order of time: logs that are there, and logs that are followed |
| `printing` | labels, colours, times |
| `printed` | what there is, printed once |
| `following` | `-f`: from one container to the next |
| `failed` | `--failed`: the rank that failed first, also from the evidence |
| `options` | the options of the command (`cli/commands/logs.py`) become a selection and a style |
"""
