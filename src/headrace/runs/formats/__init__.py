"""What commands hand to one another and print with `--json`: typed documents, each with its schema's name and version.

`profile` (the analysis of one run), `profiling` (how a run was watched), `layers` (inside the model), `isolation` (stages
alone), `comparison` (A against B). Plain data: whoever makes one and whoever draws it share only these records. A document is
encoded by `headrace.base.documents.encode_document` and read back by `msgspec.json.decode(..., type=...)`; None means "not
measured", never 0.
"""
