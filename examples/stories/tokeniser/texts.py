"""Writes 480 texts of about 100 tokens to `texts.txt`, and a vocabulary of their word pieces to `vocabulary.txt`."""

import random
from pathlib import Path

SYLLABLES = [consonant + vowel for consonant in "bdklmn" for vowel in "aeiou"]

random.seed(1)
WORDS = ["".join(random.choices(SYLLABLES, k=random.choice((1, 2, 2, 3)))) for _ in range(4000)]
texts = [" ".join(random.choices(WORDS, k=80)).capitalize() + ", finally." for _ in range(480)]
known = sorted(set(random.sample(WORDS, 2500)))
pieces = [*SYLLABLES, *(f"##{one}" for one in SYLLABLES), *"abdeiklmnofuy,.", *(f"##{one}" for one in "abdeiklmnofuy")]
special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
Path("texts.txt").write_text("\n".join(texts) + "\n")
Path("vocabulary.txt").write_text("\n".join(dict.fromkeys([*special, *pieces, *known])) + "\n")
