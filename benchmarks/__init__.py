"""Benchmarks: one workload, several hand-written designs, one way of measuring. Run from the repository's root.

How the files follow one another:

* ``corpus``       photographs -> a folder of JPEG crops
* ``models``       a MobileNetV2-shaped ONNX model with seeded random weights
* ``servers``      an image server and a callback server on the loopback
* ``faults``       pipelines with one known fault: ``python -m benchmarks.faults``; what a diagnosis is tried on
* ``truth``        pipelines drawn from seeds, their truth measured: ``python -m benchmarks.truth``
* ``hostile_inputs``  files and messages that strangers may send, for ``hostile``
* ``closed_network``  a network namespace with a name server and a trap at every address, for ``hostile_addresses``
* ``measure``      foreign load, machine description, interleaved rounds, CPU seconds, result files
* ``setup_peers``  the separate virtual environment of PyTorch and Ray
* ``serve``        headrace behind HTTP beside other servers: ``python -m benchmarks.serve``
* ``peers``        one module per design, one protocol, tuning; ``python -m benchmarks.peers`` runs them

Everything built here is cached under ``benchmarks/.cache`` by a hash of what it was built from. Nothing in ``peers``
imports headrace.
"""
