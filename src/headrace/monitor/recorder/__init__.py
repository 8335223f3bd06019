"""The flight recorder: the last minutes of a run in memory that outlives it, and incidents made of them.

Begin with `ring`, the memory; `recorder` fills it while a run goes on; `window` makes ordinary run folders of it; `changes`
says what changed between two of them, and `incident` joins that to a document. `store` is the folder that keeps incidents.
"""
