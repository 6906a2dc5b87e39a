"""The cache holds the operator's knowledge of each job: like client-go's caches, but by job.

Read `store` first (`upsert`, `delete`, `record_*`, `snapshot`), then `records`: one job's part of it, with the rules
that decide which job owns a pod. `views` turns the API server's objects into frozen values, `job_objects` those of
jobs; it also logs and counts unreadable objects. `large_jobs` runs in a thread the reads that would block the loop.
"""
