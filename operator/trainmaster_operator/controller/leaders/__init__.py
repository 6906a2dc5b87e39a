"""The streams of jobs' leaders: what agents report, as it happens.

Read `targets` first (which agents may lead, and what they may report), then `stream` (one job's: connecting, reading,
recording, pushing) and `streams` (all of them). `reach` is the way to an agent's port: direct, or by the API server's
proxy. `budget` bounds what a leader may send; `acknowledger` sends it which reports have been recorded.
"""
