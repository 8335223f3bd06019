"""The page at `/`: give an image, see the answer, how long each stage took, and the batch it was in."""
