"""The typed documents that commands pass to one another and print with `--json`, each with its schema and version.

`profile` (the analysis of one run), `profiling` (how a run was watched), `layers` (inside the model), `isolation` (stages
alone), `experiment` (the running pipeline, perturbed), `comparison` (A against B). Plain data: the maker and the reader of
a document share only these records. A document is encoded by `headrace.base.documents.encode_document` and read back by
`msgspec.json.decode(..., type=...)`; None means "not measured", never 0.
"""
