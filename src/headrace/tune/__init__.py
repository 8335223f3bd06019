"""From a Plan to a better one: sweeps, search, capacity, the ladder of single steps.

Read in this order:

    objective, space         what "better" means, and the Plans to choose from
    tuning_runs, sweep       short runs that measure a base, and what each batch size costs
    predictions, predictor   what the Plans are predicted to do
    search                   the best predicted Plans
    rounds, decision         measures a few of them against the base, in turn, and decides
    agreement                whether the results are the same
    tuning                   all of it: `headrace tune`; setting_reasons, tuning_document: why, as a document
    usable_rate, capacity    `headrace capacity`, with largest_rate and improvements
    ladder_steps, ladder     `headrace ladder`, with ladder_prediction
"""
