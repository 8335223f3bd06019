"""Text -> tokens, by the package tokenizers, which is imported here alone; and the tokens of a batch -> arrays.

How this works: a tokenizer encodes one text a call, outside the GIL and in the calling thread. So texts are encoded side by
side by the stage's workers, whose number the thread budget knows; the package's own pool, which would take every core and does
not survive a fork, is never started. Texts of all lengths go into one batch; only there are they padded, to few lengths, as
engines do not like many shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import DecodeRejected, MissingExtra, SettingsError
from headrace.base.settings import refuse_options
from headrace.stages.inputs import TextInput
from headrace.stages.stage import Stage, StageContext

#: Usual names of the token that fills up, where the file does not say.
_PADS = ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one text."""

    ids: np.ndarray
    """int64, (tokens,)."""
    lengths: tuple[int, ...]
    """To which a batch may be padded, ascending."""
    pad: int
    """Id of the token that fills up."""
    pads_left: bool = False
    """Whether a batch is padded in front of its texts."""


def stack_tokens(batch: Sequence[Tokens]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of a batch and which of them count (1, else 0), both int64 (batch, length).

    The length is the shortest of the input's that holds the longest text.
    """
    longest = max(len(one.ids) for one in batch)
    length = next((one for one in batch[0].lengths if one >= longest), longest)
    ids = np.full((len(batch), length), batch[0].pad, np.int64)
    mask = np.zeros_like(ids)
    for row, one in enumerate(batch):
        place = slice(length - len(one.ids), None) if one.pads_left else slice(len(one.ids))
        ids[row, place] = one.ids
        mask[row, place] = 1
    return ids, mask


class TokeniseStage(Stage):
    """Text -> `Tokens`. Counts `NAME.cut`, the texts that were longer than the longest length."""

    kind = "cpu"
    releases_gil = True
    work = "preprocess"

    def __init__(self, name: str, wanted: TextInput, folder: Path, *, task: str = "") -> None:
        super().__init__(name, task=task)
        assert wanted.tokenizer is not None
        self.file = folder / wanted.tokenizer
        self.lengths = wanted.lengths
        self.padding = wanted.padding

    def open(self, context: StageContext) -> Callable[[Any], Tokens]:
        """Return what encodes a text; the workers share one tokenizer."""
        refuse_options(context.options, self.name)
        key = f"tokenizer {self.file}"
        if key not in context.shared:
            context.shared[key] = _open(self.file, self.lengths[-1])
        tokenizer, pad, side = context.shared[key]
        pads_left = (self.padding or side) == "left"

        def tokenise(text: str) -> Tokens:
            try:
                encoding = tokenizer.encode(text)
            except (TypeError, UnicodeError) as error:
                raise DecodeRejected(f"decode.text: this is no text that can be tokenised: {error}") from None
            if encoding.overflowing:
                context.count(f"{self.name}.cut")
            return Tokens(np.array(encoding.ids, np.int64), self.lengths, pad, pads_left)

        return tokenise


def _open(file: Path, longest: int) -> tuple[Any, int, str]:
    """Return a tokenizer that does not pad, the id of the token that fills up, and the side on which it does."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("hr.TextInput(tokenizer=...)", "tokenizers") from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises no class of its own
        raise SettingsError(
            f"the tokenizer {file} cannot be read: {error}; expected a tokenizer.json, as `save` of a tokenizer or "
            "`save_pretrained` of transformers writes it"
        ) from None
    pad, padding_side = _find_pad(tokenizer), (tokenizer.padding or {}).get("direction", "right")
    tokenizer.no_padding()
    side = (tokenizer.truncation or {}).get("direction", "right")
    tokenizer.enable_truncation(longest, direction=side)
    return tokenizer, pad, padding_side


def _find_pad(tokenizer: Any) -> int:
    """Return the id of the token that fills up: the file's, else one of a usual name, else 0, as it does not count anyway."""
    named = tokenizer.padding or {}
    found = (tokenizer.token_to_id(name) for name in (named.get("pad_token"), *_PADS) if name)
    return int(next((number for number in found if number is not None), named.get("pad_id", 0)))
