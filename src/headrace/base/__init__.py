"""What every other folder speaks in: records, errors, clock, statistics, units, policies, protocols, observer, Plan.

First in the package's order: `base` imports nothing of headrace outside itself, and nothing heavier than NumPy.
"""
