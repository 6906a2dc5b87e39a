"""The agent finds each rank's progress (docs/protocol.md, "Progress"); in this order:

- `log_rules` matches lines with a framework's preset or the job's own pattern, and reads tqdm's bars. Pure.
- `printed` applies it to the ranks' output, within a bounded time.
- `trainer` is the server for reports of Hugging Face's Trainer, and reads them.
- `recorder` asks torch's flight recorder for the progress of a rank's collectives.
- `sources` reads progress files and combines all sources: which of them counts, and how long a step takes.
"""
