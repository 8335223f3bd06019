"""Texts become tokens in a stage of their own, and batches of them arrays of few lengths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.base.plan import Plan, resolve
from headrace.stages.stage import StageContext
from headrace.stages.tokenise import TokeniseStage, Tokens

tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.full

WORDS = {"[PAD]": 7, "[UNK]": 0, "a": 1, "b": 2, "[CLS]": 3}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a tokenizer of whole words that puts [CLS] in front; its file pads and cuts as no pipeline wants."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 3)])
    made.enable_padding(length=50)
    made.enable_truncation(2)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def opened(file: Path, lengths: tuple[int, ...] = (4, 8), padding: Any = None) -> tuple[Any, StageContext]:
    """Return what a worker calls, and its context."""
    stage = TokeniseStage("tokenise", hr.TextInput(tokenizer=file.name, lengths=lengths, padding=padding), file.parent)
    plan = resolve(Plan(), [stage.defaults()], 2)
    context = StageContext("tokenise", 0, plan, {}, None, lambda path=None: None)  # type: ignore[arg-type,return-value]
    return stage.open(context), context


def test_a_batch_is_padded_to_the_shortest_length_that_holds_it(file: Path) -> None:
    """With the token that fills up, which does not count; special tokens are there, and long texts are cut and counted."""
    tokenise, context = opened(file)
    ids, mask = hr.stack_tokens([tokenise("a b"), tokenise("b")])
    assert ids.tolist() == [[3, 1, 2, 7], [3, 2, 7, 7]]
    assert mask.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert (ids.dtype, mask.dtype) == (np.int64, np.int64)
    assert hr.stack_tokens([tokenise("a b a b a"), tokenise("b")])[0].shape == (2, 8)
    assert context.counts == {}
    assert hr.stack_tokens([tokenise("a " * 20)])[0].tolist() == [[3] + [1] * 7]
    assert context.counts == {"tokenise.cut": 1}


def test_what_the_file_says_of_padding_and_cutting_counts(tmp_path: Path) -> None:
    """Its own token fills up, and texts are cut on its side."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "FILL": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(pad_id=3, pad_token="FILL")
    made.enable_truncation(100, direction="left")
    made.save(str(tmp_path / "own.json"))
    tokenise, _ = opened(tmp_path / "own.json", lengths=(2,))
    ids, mask = hr.stack_tokens([tokenise("a"), tokenise("a a b b")])
    assert (ids.tolist(), mask.tolist()) == ([[1, 3], [2, 2]], [[1, 0], [1, 1]])


@pytest.mark.parametrize(("side", "padding"), [("left", None), ("right", "left"), ("left", "left")])
def test_a_batch_is_padded_on_the_left(tmp_path: Path, side: str, padding: Any) -> None:
    """Where the file says so, as of a model that goes on with a text, or the program does."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(direction=side, pad_id=7, pad_token="[PAD]")
    made.save(str(tmp_path / "own.json"))
    tokenise, _ = opened(tmp_path / "own.json", lengths=(3,), padding=padding)
    ids, mask = hr.stack_tokens([tokenise("a"), tokenise("a b"), tokenise("")])
    assert ids.tolist() == [[7, 7, 1], [7, 1, 2], [7, 7, 7]]
    assert mask.tolist() == [[0, 0, 1], [0, 1, 1], [0, 0, 0]]


def test_the_tokens_are_those_of_the_package(file: Path) -> None:
    """For each text, whatever is in it."""
    tokenise, _ = opened(file, (64,))
    plain = tokenizers.Tokenizer.from_file(str(file))
    plain.no_padding()
    plain.no_truncation()
    for text in ("", "a", "b a x", "züri 東京 a", "a\nb\ta"):
        assert tokenise(text).ids.tolist() == plain.encode(text).ids


def test_no_thread_is_started(file: Path) -> None:
    """The package's own pool would take the cores of the other stages, and not survive a fork."""
    before = len(os.listdir("/proc/self/task"))
    tokenise, _ = opened(file)
    for _ in range(20):
        tokenise("a b a")
    assert len(os.listdir("/proc/self/task")) == before


def test_what_is_no_text_is_rejected_alone(file: Path) -> None:
    """Half of a surrogate pair is in no encoding."""
    tokenise, _ = opened(file)
    with pytest.raises(hr.DecodeRejected, match=r"decode\.text"):
        tokenise("a\ud800")


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_a_file_that_is_no_tokenizer_is_refused_before_the_first_job(tmp_path: Path, content: str | None) -> None:
    """By name, with what was expected."""
    if content is not None:
        (tmp_path / "t.json").write_text(content)
    with pytest.raises(SettingsError, match=r"t\.json cannot be read: .*expected a tokenizer\.json"):
        opened(tmp_path / "t.json")


@pytest.mark.parametrize("lengths", [(), (0, 8), (8, 8), (16, 8)])
def test_lengths_that_no_batch_could_have_are_refused(lengths: tuple[int, ...]) -> None:
    """Empty, none, or not ascending."""
    with pytest.raises(SettingsError, match="lengths"):
        hr.TextInput(lengths=lengths)


class Counts(hr.Module):
    """Return how many tokens each text has, and how many texts came together."""

    def __init__(self, file: Path) -> None:
        self.input = hr.TextInput(tokenizer=file)

    def process(self, batch: Sequence[Tokens]) -> list[int]:
        """Count what counts."""
        return [int(number) for number in hr.stack_tokens(batch)[1].sum(axis=1)]


def test_a_module_gets_tokens_of_texts_of_all_lengths(file: Path) -> None:
    """Bytes or text, in batches that no length cuts short."""
    texts = ["a " * (number % 40) for number in range(60)]
    pipeline = hr.Pipeline(source=hr.items([text.encode() for text in texts]), module=Counts(file))
    assert [stage.name for stage in pipeline.stages] == ["fetch", "decode", "tokenise", "process", "deliver"]
    result = hr.run(pipeline, Plan().with_settings(["process.batch=8"]))
    assert result.counters.delivered == 60
    collected = dict(pipeline.delivery.results)  # type: ignore[attr-defined]
    assert [collected[str(number)] for number in range(60)] == [1 + number % 40 for number in range(60)]
    reasons = {stage["name"]: stage.get("release_reasons", {}) for stage in result.summary.as_dict()["stages"]}
    assert "shape" not in reasons["process"]
