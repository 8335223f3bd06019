"""Looks for threats in the texts around a video: download, preprocess, network, answer. All four are emulated.

Their times are those of GumGum Engineering's "Simple Ways to Save Big in Computer Vision Inference", divided by ten: 22.2 ms to
download and to call back, 6.3 ms to preprocess, and for the network 1.36 ms a call and 3.4 ms an item (in the Plans).

headrace run jobs.py:pipeline --plan slow.toml
"""

import headrace as hr


class Threat(hr.Module):
    """Scores a text."""

    input = hr.ArrayInput()

    def load(self, context):
        """Open the device that the Plan names."""
        self.network = context.open_model()

    def process(self, batch):
        """Return a score for each text."""
        return self.network(batch)[:, 0].tolist()


pipeline = hr.Pipeline(
    hr.items([[number] for number in range(160)]),
    stages=[
        hr.emulated("fetch", kind="io", seconds=0.0222),
        hr.emulated("preprocess", seconds=0.0063),
        *Threat().stages(),
    ],
    delivery=hr.jsonl("threats.jsonl"),
)
