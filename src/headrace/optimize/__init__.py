"""Makes a model cheaper: tries engines, precisions and compressions, judges each variant, and keeps what was tried.

To read in this order: `artifacts` (model files by their content), `onnx_files` (reading and folding them), `int8`,
`equalization` and `group_revert` (what changes a file), `techniques` (each with applies-or-why-not), `catalogue` (all of them).
Then the search: `search` (the order of techniques), `cheap_gates` and `golden_test` (judging one candidate), `alpha_budget`
(how many are tested, at what level), `attempt_log` (what is kept), and `decision` (among those accepted: `concurrency`,
`head_to_head`, `pareto`). Last `end_to_end`: whether the pipeline gains what its model gained.
"""
