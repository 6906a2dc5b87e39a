"""The cache is what the operator knows of each job: as client-go's caches are, but by job.

Read `store` first (`upsert`, `delete`, `record_*`, `snapshot`), then `records`, one job's part of it with the rules of
whose a pod is. `job_objects`, `views` and `workload_view` turn the API server's objects into frozen values.
`large_jobs` reads and parses what would hold up the loop, in a thread. `unreadable` logs and counts what can't be read;
`lookup_results` is what `lookups` has found.
"""
