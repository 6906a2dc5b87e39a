"""What people and Prometheus see of the operator: `metrics`, the probes (`health`), and `log_formats`."""
