"""Whether one variant of a model may stand in for another: as right, and faster.

A newcomer reads in this order:

    golden          inputs that a model takes, with the right answers where they are known
    meanings        what answers mean: classes, detections, text, masks, embeddings, numbers
    noninferiority  whether the candidate is no worse by more than a margin, item by item
    model_speed     how much faster one opened model is than another
    variants        the gates, cheapest first, and the verdict of all: the document of `headrace validate`
    shadow          the same questions, asked beside a run
"""
