"""How far a rank is, where its script says nothing itself (docs/protocol.md, "Progress"); in this order:

- `bars` reads tqdm's bars, and adds those of epochs up. `presets` has the lines of frameworks as data. Pure.
- `log_rules` matches lines with a preset or the job's own pattern. Pure.
- `printed` gives it what ranks print, within a bounded time.
- `trainer_environment` makes Hugging Face's Trainer report, `trainer_reports` reads what it sends (both pure), and
  `trainer_server` is where it sends it.
- `counters` asks torch's flight recorder how far the collectives of a silent rank are.
- `step_times` derives from a rank's steps what one takes, where the rank says only its steps. Pure.
- `sources` brings all of them and the progress files together: which of them counts.
"""
