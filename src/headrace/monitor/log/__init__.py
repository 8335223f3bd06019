"""A log that programs read: one line of JSON per event, on stderr, bounded in rate and length, and never in the run's way.

    logger -> `json_log` -> `rate_limit` (what repeats is counted) -> `line` (bytes) -> `line_writer` (bounded, never waits)

Begin in `json_log`.
"""
