"""Is the change really better: what ran before against what runs after.

A newcomer reads in this order:

    blocks       runs one pipeline over a fixed number of items and measures the steady part
    interleaved  runs two of them in turn, A B B A ..., and pairs the blocks
    recorded     cuts two run folders into blocks of time instead
    looks        when the pairs are looked at
    intervals    how far the true difference may lie from the one seen
    judging      better, worse, no difference, or how many more pairs would tell
    comparison   all of it as the document `headrace.compare/1`, with the words for people
"""
