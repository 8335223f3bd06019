"""Metrics of a run or a service: one table of all series, counted in memory that outlives a worker, and shown to Prometheus.

Begin with `table`, which defines every series. Documentation, dashboards and rules are made from it.
"""
