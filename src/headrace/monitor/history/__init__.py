"""Every run as a line of a file, and whether stages take more CPU time per item than they used to.

A newcomer reads in this order:

    moments     what the items of a window cost, as sums that can be added
    baseline    from the first windows: the CPU time that an item should take, and how much windows differ
    evidence    the sequential test: how much speaks for a slowdown so far
    judging     windows in, a verdict for each stage out
    windows     cuts a run folder into windows; `lines` makes its line
    store       the file
    watching    counts a run while it goes on, and judges each window when it ends
    words       verdicts as sentences; `page` draws all of it
"""
