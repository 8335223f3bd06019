"""Replays a run under another Plan. Knows no run folder: `system` describes what is simulated, `diagnose.replay` makes that.

Read in this order: `system` (the description), `station_states` (workers and stations at work), `engine` (the loop),
`trace` (what came of it).
"""

from headrace.diagnose.simulator.engine import simulate
from headrace.diagnose.simulator.system import Program, Receivers, Retry, Station, System
from headrace.diagnose.simulator.trace import Trace, steady_rate

__all__ = ["Program", "Receivers", "Retry", "Station", "System", "Trace", "simulate", "steady_rate"]
