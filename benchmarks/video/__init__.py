"""Video against loops that people write: clips, live streams, cameras held as predicted, and damaged bytes.

python -m benchmarks.video [--quick] [--json] [--write]
"""
