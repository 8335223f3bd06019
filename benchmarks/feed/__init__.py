"""How fast data arrives: formats, packing, loading for training, resuming."""
