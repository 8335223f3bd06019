"""Files and messages that strangers may send, each with the verdicts that are right for it.

Nothing here is downloaded or stored: bombs are a few lines of code, damaged files are the photographs of `headrace.samples`
with a seeded dose of damage. The same seed gives the same bytes as long as Pillow, whose encoders are used, is the same.

binary.py     files written byte by byte: what no encoder would write
files.py      one file of every kind, with what is to be made of it
mutations.py  any number of damaged photographs
messages.py   bodies of queue messages
"""

from benchmarks.hostile_inputs.files import HostileFile, hostile_files
from benchmarks.hostile_inputs.messages import hostile_messages
from benchmarks.hostile_inputs.mutations import mutated_files

__all__ = ["HostileFile", "hostile_files", "hostile_messages", "mutated_files"]
