"""Rules with deadlines as plain objects: they take `now` and return a decision; no threads, sleeps or sockets.

The live pipeline and the simulator share them.
"""
