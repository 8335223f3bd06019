"""What was predicted, tried and decided, kept in one SQLite file; rests on `base` and `runs` alone."""
