"""People and Prometheus observe the operator by its `metrics`, which include the series of each job.

`endpoints` serves the probes and `/metrics`, and asks the API server who may read the metrics.
"""
