"""Is B better than A: alternatives measured in turn, and what the measurements say.

A newcomer reads in this order:

    turns        the loop: rounds of blocks, one of each alternative, until a look has the answer
    sequential   after how many rounds one looks, and by how much each look may err
    blocks       runs one pipeline over a fixed number of items and measures the steady part
    elsewhere    runs a pipeline of another checkout, in a process of its own
    contenders   runs two pipelines, or several Plans of one, in turn over the same items
    intervals    how far the true difference may lie from the one seen
    judging      better, worse, no difference, or how many more pairs would tell
    recorded     cuts two run folders into blocks of time instead
    comparison   all of it as the document `headrace.compare/1`; `words` has its sentences
"""
