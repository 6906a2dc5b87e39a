"""Through the stream of each job's leader, the operator receives agents' reports as they happen.

Read `targets` first: it defines which agents may lead, how they are reached, and how much they may report. `streams`
connects to each job's leader, reads and records its lines, acknowledges reports, and pushes assignments.
"""
