"""The streams of jobs' leaders bring what agents report, as it happens.

Read `targets` first: which agents may lead, how they are reached, and how much they may report. `streams` connects to
each job's leader, reads, records, acknowledges, and pushes assignments.
"""
