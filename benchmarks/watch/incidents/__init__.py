"""Incidents planted in real runs, to see whether the flight recorder alone names their cause.

`catalogue` says what is planted and what must be named, written before any of it was run; `world` is the run, a process of its
own that is killed at its end; `score` starts it, writes the incident from what it left in memory, and compares.
"""
