"""From a Plan to a better one: sweeps, search, capacity, the ladder of single steps."""
