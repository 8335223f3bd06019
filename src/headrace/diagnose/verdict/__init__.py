"""Rules that turn the numbers of one run into a verdict.

How this works: the simulator says *where* a run loses its throughput (which resource, made 20 % faster, gains most); it cannot
say *why* a stage is slow, because a stage 20 % faster is the same for it whatever the reason. The rules say why: each looks at
facts and makes proposals, with evidence and the share of the resource's time that its cause takes. The ranking joins the two.

Read in this order:

1. `work`        what a stage does: download, decode, ..., by what it says of itself, its kind, place and name
2. `facts`       the numbers that rules look at, gathered once
3. `trends`      how a stage's cost changes with time, size and company
4. `proposal`    what a rule hands over
5. `pace`        whether a service answers at its own pace
6. `cores`, `python`, `network`, `rate_limit`, `storage`, `device`, `model_cost`, `flow`, `intake`, `inputs`, `streams`, ...
   one family of rules each
7. `agreement`   three kinds of evidence that a resource really is the bottleneck
8. `ranking`     which proposal is the verdict, which the runner-up
9. `remedies`    what a change would buy, by simulation
10. `goals`       whether what the user asked for is met
"""
