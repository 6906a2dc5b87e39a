"""Watching keeps the cache as the API server is.

Read `watcher` first: it supervises `kopf_thread`, which is all that is used of kopf. `resync` reads everything once at
the start, and compares with a list now and then, because watches lose deletions. `watched` says which types and labels;
`gangs` watches those of gang schedulers once a job uses them.
"""
