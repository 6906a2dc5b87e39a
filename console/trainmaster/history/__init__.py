"""`trainmaster history serve` records what operators send of all jobs, and answers to who may see a job.

1. `process` is the process: `recorder` writes in one thread, `reading` reads in a few, `server` is HTTP.
2. `store` writes records into the one file, whose tables `schema` makes. From the statuses of a job it derives
   `attempts` and the `summary` that lists show. The newest `samples` stand in the file as they came.
3. `aging` packs them into blocks of `curves` (the job's figures) and `heat` (each rank's), by the levels and rules of
   `thinning`; `packing` makes columns bytes. `trimming` keeps the file below its size, and lets old jobs go.
4. `answers` are the JSON objects, of `drawing` those that charts draw; a heat map's `cells` are combined row by row.
   They need the file alone, or a copy of it, which `files` reads for the command line.
5. `access` asks the API server what a viewer may see, `places` bounds what all of them ask at a time, `queries` reads
   what a request asks for. `settings`, `metrics`.
"""
