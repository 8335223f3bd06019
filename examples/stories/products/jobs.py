"""Sorts product images into categories.

headrace run jobs.py:pipeline --plan slow.toml
"""

import headrace as hr


class Category(hr.Module):
    """Names the category of a product image."""

    input = hr.ImageInput(short_side=256, crop=224)

    def load(self, context):
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, image):
        """Return what the network takes."""
        return hr.images.normalize(image)

    def process(self, batch):
        """Return a score for each image."""
        return self.network(batch)[:, 0].tolist()


pipeline = hr.Pipeline(source=hr.folder("products"), module=Category(), delivery=hr.jsonl("categories.jsonl"))
