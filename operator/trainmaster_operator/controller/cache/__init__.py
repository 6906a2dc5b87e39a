"""The cache holds the operator's knowledge of each job. It resembles client-go's caches, but is organised by job.

Read `store` first (`upsert`, `delete`, `record_*`, `snapshot`), then `records`, which holds the knowledge of one job
and the rules that decide which job owns a pod. `views` converts the API server's objects to frozen values.
`job_objects` converts jobs, and logs and counts unreadable objects. `large_jobs` runs reads in a thread if they would
block the loop.
"""
