"""People and Prometheus observe the operator by `metrics`, the probes and `/metrics` (`health`), and `log_formats`.

`job_metrics` are the series of each job, made from its status at each scrape. `scrapers` knows who may read them.
"""
