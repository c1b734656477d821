"""Alert rules for Prometheus and a dashboard for Grafana, generated from the metrics that a broker reports.

The package uses only the broker's list of metrics. Begin with `alerts.py`.
"""
