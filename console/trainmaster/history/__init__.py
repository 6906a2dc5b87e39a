"""`trainmaster history serve` records the jobs that operators report, and answers viewers who may see them.

1. `process` runs it: `recorder` writes in one thread, `answers` reads in a few, `server` is HTTP.
2. `store` writes records into the one file, whose tables `schema` makes. `statuses` derives further data from a job's
   statuses: the summary that lists show, and the attempts.
3. `figures` are a job's curves and heat, unchanged in the tail and packed in blocks; `upkeep` packs and thins them,
   keeps the file below its size, and deletes old jobs.
4. `answers` makes the JSON objects (`client.history.answers` has their types), `drawing` the ones for charts.
5. `viewers` checks each viewer's rights with the API server, and limits their requests. `settings`.
"""
