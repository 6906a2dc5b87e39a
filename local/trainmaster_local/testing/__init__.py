"""Fixtures of clusters for test suites that use kubectl; they need pytest.

`clusters` has the fixtures, and `administrator` their requests; `apiserver_binaries` starts a real API server for them.
"""
