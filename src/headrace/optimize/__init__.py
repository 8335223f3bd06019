"""Makes a model cheaper: tries engines, precisions and compressions, judges each variant, and keeps what was tried.

To read in this order: `artifacts` (model files by their content), `onnx_files` (reading and folding them), `int8`,
`equalization` and `group_revert` (what changes a file), `techniques` (each with applies-or-why-not), `search` (the ladder, its
gates and its repairs), `pareto` (what is worth choosing from).
"""
