"""Watching keeps the cache equal to the API server's state.

Read `watcher` first: it runs kopf in a thread, only to watch. `resync` defines the watched types, reads everything once
at the start, and repeats the lists from time to time, because watches lose deletions. `gangs` watches the types of gang
schedulers once a job uses them.
"""
