"""Whether this machine is what a Plan, a run, a lock or another machine was proved on: `headrace doctor`.

Read in this order:

    machine                       reads this machine's files and limits, or says why it cannot
    check, comparing              an entry of the table, and how two values are compared
    processor, limits, software, surroundings    the entries, by theme; `table` joins them
    fingerprints                  a machine as a file
    references, plan_needs        what a run, a lock, a Plan and the ledger expect
    examination                   all of it as a document; `change` answers the one question of metrics

A new check is one entry of `check.Check` in one of the four themes.
"""
