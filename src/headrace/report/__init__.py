"""Makes what people look at from what a run left behind: one HTML page, and timelines for trace viewers.

`page` puts the HTML together from `sections`, one module for each part of it; these build tables with `markup` and `numbers`
and charts with `charts`. `assets` holds the style, the script and the chart library that go into every page. Timelines are in
`timeline`, `chrome_trace` and `perfetto_trace`.
"""
