"""People and Prometheus observe the operator by `metrics`, the probes and `/metrics` (`health`).

`job_metrics` are the series of each job, made from its status at each scrape. `scrapers` knows who may read them.
"""
