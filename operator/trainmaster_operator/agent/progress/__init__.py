"""This package finds each rank's progress (docs/protocol.md, "Progress"). Read the modules in this order:

- `common_lines` recognises training in lines of plain scripts. Pure.
- `log_rules` matches lines with a framework's preset or the job's own pattern, and reads tqdm's bars. Pure.
- `printed` matches the ranks' output by these rules, within a bounded time.
- `trainer` receives and reads reports of Hugging Face's Trainer.
- `recorder` asks torch's flight recorder for the progress of a rank's collectives.
- `usual` learns how long steps and sections take, and derives the limits of a silence. Pure.
- `sources` reads progress files, decides which source counts, and derives how long a step takes.
"""
