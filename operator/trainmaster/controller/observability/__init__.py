"""People and Prometheus observe the operator by `metrics`, the probes (`health`), and `log_formats`."""
