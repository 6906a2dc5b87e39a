"""`trainmaster history serve` records the jobs that operators report, and answers viewers who may see them.

1. `server` runs the history and serves HTTP. `recorder` writes in one thread, and `answers` reads in a few.
2. `store` writes records into a single file, whose tables `schema` creates. `statuses` derives the summary that lists
   show, and the attempts, from a job's statuses.
3. `figures` encodes a job's curves and heat: unchanged in the tail, and packed in blocks. `upkeep` packs and thins
   them, keeps the file below its maximum size, and deletes old jobs.
4. `answers` returns JSON objects (`client.history.answers` defines their types); `drawing` computes those for charts.
5. `viewers` checks each viewer's rights with the API server, and limits their requests. `settings` declares options.
"""
