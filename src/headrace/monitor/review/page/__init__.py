"""The local page on which a person reviews: server.py answers it, assets/ is what the browser gets."""
