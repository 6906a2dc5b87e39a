"""People and Prometheus observe the operator through its `metrics`, which include series of each job.

`endpoints` serves the probes and `/metrics`, and asks the API server who may read the metrics.
"""
