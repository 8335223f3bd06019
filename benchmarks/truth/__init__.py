"""Whether diagnoses and predictions are right for pipelines that nobody has seen: drawn from seeds, their truth measured.

A newcomer reads in this order:

    spec          what a generated pipeline is made of: plain data
    grammar       draws a case from a seed: a healthy pipeline, and what is wrong with it
    faults        what can be wrong, and what a diagnosis has to say of it
    changes       draws the changes whose effect is predicted
    library       what stages do; surroundings: jobs, services, neighbours. Both are copied beside a pipeline written out
    program       a pipeline as the text of a Python file, which is also what the benchmark runs
    blocks        one short run of a pipeline, and its rate
    pilot         short trials that choose the dose
    judging       verdict and predictions, as frozen
    rounds        what is gained, in interleaved blocks that end once it is clear
    measuring     one case: pilot, profile, verdict and predictions; then the truth, by removal
    rows          what came of one case, as a line of a file
    scores        what all of them come to; effort: what that took
    recordings    run folders in the repository, for `--quick`
"""
