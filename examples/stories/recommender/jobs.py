"""Ranks 400 candidates for each request, by a small network of NumPy.

headrace run jobs.py:slow --plan slow.toml
"""

import json
import time

import numpy as np

import headrace as hr

#: What the store of features takes to answer.
STORE_SECONDS = 0.0015


class Ranking(hr.Module):
    """Scores candidates and returns the best ten."""

    input = hr.ArrayInput()
    weights = "network.npz"

    def load(self, context):
        """Read the network."""
        self.network = dict(np.load(self.weights))

    def process(self, batch):
        """Return the scores of the candidates of each request."""
        network, found = self.network, []
        for user, *candidates in batch:
            user, items = network["users"][user], network["items"][candidates]
            values = np.concatenate([np.broadcast_to(user, items.shape), items, user * items], axis=1)
            for layer in ("1", "2"):
                values = np.maximum(values @ network[f"weight{layer}"] + network[f"bias{layer}"], 0)
            found.append(values @ network["weight3"])
        return found

    def postprocess(self, scores):
        """Return the places of the best ten."""
        return np.argsort(-scores)[:10].tolist()


class Pruned(Ranking):
    """The same with half of the parameters."""

    weights = "pruned.npz"


def read(request):
    """Return the numbers of the user and of the candidates, once the store has answered."""
    time.sleep(STORE_SECONDS)
    return np.array(json.loads(request), np.int64)


def make_pipeline(module):
    """Return the pipeline with a network."""
    return hr.Pipeline(
        hr.folder("requests", patterns=("*.json",)),
        stages=[hr.fetch("fetch"), hr.stage("read", read), *module.stages()],
        delivery=hr.jsonl("ranked.jsonl"),
    )


slow = make_pipeline(Ranking())
pruned = make_pipeline(Pruned())
