"""What watching costs, and whether it finds what it should: one module per part, each with a `measure` of its own."""
