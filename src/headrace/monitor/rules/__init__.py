"""Alert rules and a dashboard for Prometheus and Grafana, made of the table of series (`monitor/metrics/table`).

Each alert comes with the cases that hold it: series at which it fires, and series just beside them at which it must stay quiet.
`promtool test rules` runs them. A rule is text of PromQL, since that is what its readers know.

    `parameters` -> `burn_rates`, `alerts` (with their cases) -> `files` (rules.yml, tests*.yml)
                 -> `dashboard` (Grafana's JSON)
    `promtool` runs what was written
"""
