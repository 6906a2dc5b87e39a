"""A dashboard invents its data, for the page's tests and for developers of the page.

`python -m tests.dashboard_pages` serves it. `server` answers as the dashboard does (the API of docs/dashboard.md).
`fleet` invents a thousand running jobs, and `survivor` one job in full: it survived three faults, and has a slow rank.
`troubled` adds a job that hangs and one that fails again and again.
`served` runs it in a thread, and `browser` is Debian's Chromium, for tests and for `bench.dashboard_page`.
"""
