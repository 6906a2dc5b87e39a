"""The streams of jobs' leaders bring agents' reports as they happen.

Read `targets` first: which agents may lead, how they are reached, and how much they may report. `streams` connects to
each job's leader, reads, records, acknowledges, and pushes assignments.
"""
