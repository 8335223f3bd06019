"""Drift: notice when the input, or what the model makes of it, is no longer what it was.

In reading order:

    statistics   what is watched, and the words for a change of it
    pixels, inputs, answers   what an image, a file's head, a value and a result say
    sums         adds up what is seen, for each stratum (camera, site, user)
    collector    counts what a process sees; `instrument` calls it where items pass
    folder       parts, windows, baseline and scores on disk, shared by processes
    strata, learning, power   windows -> baseline, and what it promises
    evidence, detectors   a window against the baseline: e-values, and their sum over windows
    judging, slower, times   what the detectors found, in words, and which stages take longer for it
    watching     merges and judges beside a run
    recorded     windows of images and run folders on disk

The unit is the window and not the image: images of one camera resemble one another, and a test that takes them for independent
raises false alarms most of the time.
"""
