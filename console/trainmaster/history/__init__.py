"""`trainmaster history serve` records what operators send about jobs, and answers viewers who may see a job.

1. `process` runs it: `recorder` writes in one thread, `answers` reads in a few, `server` is HTTP.
2. `store` writes records into the one file, whose tables `schema` makes, with what `statuses` derives from a job's
   statuses: the summary that lists show, and the attempts.
3. `figures` are a job's curves and heat, in the tail as they came and in blocks; `upkeep` packs and thins them, keeps
   the file below its size, and deletes old jobs.
4. `answers` makes the JSON objects (`client.history.answers` has their types), `drawing` those that charts draw.
5. `viewers` asks the API server what a viewer may see, and bounds what all of them ask at a time. `settings`.
"""
