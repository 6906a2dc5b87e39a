"""Fixtures of clusters for test suites that use kubectl; they need pytest.

`clusters` contains the fixtures, and `administrator` sends their requests; `apiserver_binaries` starts a real API
server for them.
"""
