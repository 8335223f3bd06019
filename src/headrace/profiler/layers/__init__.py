"""Inside the model: what each layer takes, and what this machine could do.

To read in this order: `operations` (operations and bytes of one operator), `protocol` (what an engine offers), `feeds` (the
inputs), `timing` (calls with and without the profiler in turns), `onnx_profile`, `openvino_profile` and `torch_profile` (the
engines), `graph_count` (the same count by another way), `roofline` (ceilings), `doubts` (warnings), `table` (all of it
joined), `text`. The result is `headrace.runs.formats.layers`.
"""

from __future__ import annotations

from headrace.profiler.layers.protocol import LayerProfiler
from headrace.profiler.layers.table import measure_layers
from headrace.profiler.layers.text import as_text

__all__ = ["LayerProfiler", "as_text", "measure_layers"]
