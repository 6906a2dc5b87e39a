"""Fixtures of clusters for test suites that use kubectl; see `clusters`. Needs pytest."""
