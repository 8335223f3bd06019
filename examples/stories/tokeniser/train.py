"""Trains a classifier of texts: python train.py [--tokeniser python|fast|kept]."""

import argparse
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertTokenizerFast
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

#: What the device takes for a batch.
DEVICE_SECONDS = 0.015
BATCH, LENGTH, EPOCHS = 32, 128, 2
PADDED = {"max_length": LENGTH, "padding": "max_length", "truncation": True}


class Texts(Dataset):
    """The lines of a file; the network learns how often each says `ba`."""

    def __init__(self, path: str, tokenise) -> None:
        self.texts = Path(path).read_text().splitlines()
        self.tokenise = tokenise

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int):
        """Return what `tokenise` makes of the text, and what is to be learnt."""
        text = self.texts[index]
        return self.tokenise(text), float(text.count("ba"))


def one_by_one(text: str) -> torch.Tensor:
    """Return the ids of a text, by a tokeniser written in Python."""
    return torch.tensor(slow(text, **PADDED)["input_ids"])


def whole_batch(items: list) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids of all texts of a batch, by one call of a tokeniser written in Rust."""
    texts, labels = zip(*items, strict=True)
    return torch.tensor(fast(list(texts), **PADDED)["input_ids"]), torch.tensor(labels)


class Network(torch.nn.Module):
    """A small network on an emulated device."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.mean = torch.nn.EmbeddingBag(words, 32)
        self.last = torch.nn.Linear(32, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return how often each text says `ba`."""
        time.sleep(DEVICE_SECONDS)
        return self.last(self.mean(ids)).squeeze(1)


parser = argparse.ArgumentParser()
parser.add_argument("--tokeniser", choices=("python", "fast", "kept"), default="python")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
slow, fast = BertTokenizerLegacy("vocabulary.txt"), BertTokenizerFast("vocabulary.txt")
if options.tokeniser == "python":
    data, collate = Texts("texts.txt", one_by_one), None
elif options.tokeniser == "fast":
    data, collate = Texts("texts.txt", str), whole_batch
else:  # once, before the training
    lines = Path("texts.txt").read_text().splitlines()
    ids = dict(zip(lines, torch.tensor(fast(lines, **PADDED)["input_ids"]), strict=True))
    data, collate = Texts("texts.txt", ids.__getitem__), None
loader = DataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=collate)
model = Network(len(fast))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(EPOCHS):
    total = 0.0
    for ids, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(ids), labels.float())
        loss.backward()
        optimizer.step()
        total += loss.detach()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
