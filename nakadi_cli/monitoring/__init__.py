"""Alert rules for Prometheus and a dashboard for Grafana, generated from the metrics that a broker reports.

It knows the list of metrics, and nothing else of the broker. Begin with `alerts.py`.
"""
