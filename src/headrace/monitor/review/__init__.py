"""Sampled predictions for review: what is kept of a run's answers, and the accuracy in production that people find in them.

    reading.py      a result -> the class it names, how sure it is, and its boxes
    hour_sample.py  which answers of an hour are kept: at random, the least certain, those that a twin answers otherwise
    catching.py     how pictures and answers get out of a run, without holding it up
    pictures.py     a picture as it is kept: small, blurred
    store.py        the folder: samples by the hour, bounded in bytes and days
    rounds.py       the order in which a person reviews, drawn with known probabilities
    estimate.py     verdicts -> accuracy with an interval that holds whenever one looks
    verdicts.py     what people said
    table.py        the same as CSV, for other tools
    golden.py       reviewed items -> candidates of a golden set
    page/           the local page on which a person reviews

`catching` and `store` run beside the pipeline; all else runs in `headrace review`.
"""
