"""Trains a recommender, prunes half of its parameters, trains it again, and writes both networks and 200 requests."""

import json
from pathlib import Path

import numpy as np
import torch

USERS, ITEMS, FEATURES, HIDDEN, KEPT = 200, 500, 16, 512, 352

torch.manual_seed(0)
torch.set_num_threads(1)
tastes = torch.randn(USERS, 4), torch.randn(ITEMS, 4)


def draw(count):
    """Return users, items, and whether each user chose the item."""
    users, items = torch.randint(USERS, (count,)), torch.randint(ITEMS, (count,))
    liking = (tastes[0][users] * tastes[1][items]).sum(1)
    return users, items, (torch.rand(count) < torch.sigmoid(2 * liking - 1)).float()


class Network(torch.nn.Module):
    """Two embeddings and three layers."""

    def __init__(self):
        super().__init__()
        self.users = torch.nn.Embedding(USERS, FEATURES)
        self.items = torch.nn.Embedding(ITEMS, FEATURES)
        torch.nn.init.normal_(self.users.weight, std=0.3)
        torch.nn.init.normal_(self.items.weight, std=0.3)
        self.one = torch.nn.Linear(3 * FEATURES, HIDDEN)
        self.two = torch.nn.Linear(HIDDEN, HIDDEN)
        self.three = torch.nn.Linear(HIDDEN, 1, bias=False)

    def forward(self, users, items):
        """Return how much each user likes the item."""
        user, item = self.users(users), self.items(items)
        values = torch.cat([user, item, user * item], dim=1)
        return self.three(torch.relu(self.two(torch.relu(self.one(values))))).squeeze(1)


def compute_loss(model, batch):
    """Return the loss of a batch."""
    users, items, chosen = batch
    return torch.nn.functional.binary_cross_entropy_with_logits(model(users, items), chosen)


def train(model, steps, rate):
    """Train some steps on new samples each."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        compute_loss(model, draw(256)).backward()
        optimizer.step()


def prune(model):
    """Take the hidden values away that weigh least, in both layers."""
    with torch.no_grad():
        one = (model.one.weight.norm(dim=1) * model.two.weight.norm(dim=0)).topk(KEPT).indices
        two = (model.two.weight.norm(dim=1) * model.three.weight.norm(dim=0)).topk(KEPT).indices
        model.one.weight = torch.nn.Parameter(model.one.weight[one])
        model.one.bias = torch.nn.Parameter(model.one.bias[one])
        model.two.weight = torch.nn.Parameter(model.two.weight[two][:, one])
        model.two.bias = torch.nn.Parameter(model.two.bias[two])
        model.three.weight = torch.nn.Parameter(model.three.weight[:, two])


def save(model, path):
    """Write the arrays of a network."""
    layers = {
        "users": model.users.weight, "items": model.items.weight,
        "weight1": model.one.weight.T, "bias1": model.one.bias,
        "weight2": model.two.weight.T, "bias2": model.two.bias,
        "weight3": model.three.weight[0],
    }  # fmt: skip
    np.savez(path, **{name: np.ascontiguousarray(values.detach().numpy()) for name, values in layers.items()})


def describe(model, name):
    """Print the parameters of the layers, and the loss on samples that no training saw."""
    layers = sum(
        values.numel() for name, values in model.named_parameters() if name.partition(".")[0] not in ("users", "items")
    )
    with torch.no_grad():
        print(f"{name}: {layers:,} parameters in its layers, loss {compute_loss(model, unseen):.4f}")


unseen = draw(20_000)
model = Network()
train(model, 500, 0.005)
describe(model, "as it was")
save(model, "network.npz")
prune(model)
describe(model, "pruned")
train(model, 150, 0.001)
describe(model, "pruned, trained again")
save(model, "pruned.npz")
Path("requests").mkdir(exist_ok=True)
for number in range(200):
    asked = [int(torch.randint(USERS, ())), *torch.randperm(ITEMS)[:400].tolist()]
    Path("requests", f"{number:03}.json").write_text(json.dumps(asked))
