"""The agent finds out how far each rank is (docs/protocol.md, "Progress"); in this order:

- `log_rules` matches lines with a framework's preset or the job's own pattern, and reads tqdm's bars. Pure.
- `printed` gives it what ranks print, within a bounded time.
- `trainer` is the server that Hugging Face's Trainer reports to, and reads its reports.
- `recorder` asks torch's flight recorder how far a rank's collectives are.
- `sources` reads progress files and brings all of them together: which of them counts, and what a step takes.
"""
