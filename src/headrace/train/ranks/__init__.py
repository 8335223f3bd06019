"""Trains a script on several ranks of this machine for a short while.

`ladder` runs 1, 2 and 4 of them in turn, `launch` starts one group, `link_probe` measures what lies between ranks.
"""
