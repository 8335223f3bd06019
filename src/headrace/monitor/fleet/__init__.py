"""Many machines in one view, without a server of headrace's own: each worker leaves heartbeats where all of them can.

place.py     a folder that all see, or a Redis server
beating.py   beside a run: writes them
status.py    reads them, and says which workers are silent or stuck, and whether all do the same
"""
