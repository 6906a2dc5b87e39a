"""A dashboard that invents what it says, for the page's tests and for who works on the page.

`python -m tests.dashboard_pages` serves it: `server` answers as the dashboard does (the API of docs/dashboard.md),
`fleet` invents a thousand jobs that go on, `survivor` one job in full: it survived three faults, and has a slow rank.
`served` has it in a thread, and `browser` is Debian's Chromium, for tests and for `bench.dashboard_page`.
"""
