"""`trainmaster history serve` records the jobs that operators report, and answers viewers who may see them.

1. `server` runs the history and serves HTTP. `recorder` writes in one thread, and `answers` reads in a few.
2. `store` writes records into a single file, whose tables `schema` creates. From a job's statuses, `statuses` derives
   the job's attempts and the summary that lists show.
3. `figures` encodes a job's curves and heat: unchanged in the tail, and packed in blocks. `upkeep` packs and thins
   them, keeps the file below its maximum size, and deletes old jobs.
4. `answers` returns JSON objects (`client.history.answers` defines their types); `drawing` computes those of charts,
   and `names` lists a job's curves.
5. `viewers` checks each viewer's rights with the API server, and limits their requests. `settings` declares options.
"""
