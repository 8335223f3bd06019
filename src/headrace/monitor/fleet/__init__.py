"""Many machines in one view, without a server of headrace's own: each worker leaves heartbeats where all of them can.

place.py     a folder that all see, or a Redis server
beating.py   beside a run: writes them
suspects.py  beside a run on a queue: what is known of jobs that kill workers, told to the other machines
status.py    reads them, and says which workers are silent or stuck, and whether all do the same
"""
