"""profile -> diagnose -> tune or optimize -> validate -> ledger, unattended: `headrace loop`.

    goals     what is asked for, as people type it
    policy    which step comes next, or why to stop: a plain function of the steps so far
    folder    the loop's folder: its document, which a killed loop goes on from, and its Plans
    runner    takes the steps, writes each down, ends in time

Taking a step is passed in: `cli/loop_steps.py` does it by the commands that stand in each step.
"""
