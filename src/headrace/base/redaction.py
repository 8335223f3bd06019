"""Takes secrets out of a text: passwords of addresses, signatures of signed addresses, tokens, keys.

It knows secrets by the names in front of them, so it is the last guard, not the first: messages are made without secrets
(`base/http_error.strip_secrets`, `sources/addresses.hide_secrets`). What other people's code raises and logs comes here unseen:
texts of exceptions where they become reasons (`base/error_origin`, `ItemError`), and lines of the log.
"""

from __future__ import annotations

import re

_NAMES = (
    r"pass(?:word|wd|phrase)?|pwd|secret(?:[_-]?key)?|token|sig(?:nature)?|credentials?|auth(?:orization)?|"
    r"(?:api|access|account|private)[_-]?key(?:[_-]?id)?"
)
_BARE = r"""[^\s&#"'<>,;]+"""
_QUOTED = r"""\\{0,4}(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)"""
#: A word that is hardly one of a sentence.
_ODD_WORD = r"""(?=[^\s"',;]{0,99}\d)[^\s"',;]{6,}"""
#: What follows the word "password" in sentences about one.
_NO_SECRET = (
    "(?:and|are|as|at|authentication|be|by|can|cannot|change|changed|check|did|do|does|expired|failed|field|file|for|from|given|had|"
    "has|hash|have|here|if|in|incorrect|invalid|is|may|mismatch|missing|must|no|none|not|of|on|option|or|parameter|policy|prompt|"
    "protected|required|reset|set|should|than|that|the|this|to|too|wanted|was|were|when|which|will|with|without|wrong|your)"
)
_RULES = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), replacement)
    for pattern, replacement in (
        (r"""://[^\s/?#"'<>]{0,512}(?<!:\.\.\.)@""", "://...@"),
        # A password that should have been quoted: with a space or a slash; behind a host and its port there is none.
        (
            r"""://[^\s/?#"'<>:@\[]{0,64}:(?!\s|\.\.\.@|\d{1,5}(?:[/\s?#,;)]|\Z))[^\r\n"'<>@]{1,128}@(?=[\w\[])""",
            "://...@",
        ),
        (r"""(?<![\w./+-])[\w.+-]{1,64}:(?!\.\.\.@)[^\s:@/"'<>]{1,128}@(?=[\w\[])""", "...@"),
        (rf"([?&;][\w.%-]{{0,64}}?(?:{_NAMES}|key)[\w.%-]{{0,64}}=){_BARE}", r"\1..."),
        (
            rf"\b([\w-]{{0,64}}(?:{_NAMES})\s{{0,2}}(?:=|%3D)\s{{0,2}})(?!\.\.\.)(?:[bru]{{0,2}}{_QUOTED}|{_BARE})",
            r"\1...",
        ),
        (
            rf"""(["'][\w-]{{0,64}}(?:{_NAMES})\\{{0,4}}["']\s{{0,4}}:\s{{0,4}})(?:[bru]{{0,2}}{_QUOTED}|\[[^\]]*\]?|\d[\w.]*)""",
            r'\1"..."',
        ),
        (r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", r"\1 ..."),
        (rf"\b((?:[\w-]{{0,64}}(?:{_NAMES})|cookie):\s{{1,4}}){_ODD_WORD}", r"\1..."),
        (r"([?&](?:code|state|jwt|sid|session)=)[^\s&#\"'<>,;]+", r"\1..."),
        (
            rf"\b((?:pass(?:word|wd|phrase)|pwd)\s{{1,4}}(?:is\s|was\s)?)(?!{_NO_SECRET}\b)[^\s\"',;:=<>()]{{3,}}",
            r"\1...",
        ),
        (rf"(--[\w-]{{0,64}}(?:{_NAMES})\s){_ODD_WORD}", r"\1..."),
        (r"\bwhsec_[\w+/=-]+", "whsec_..."),
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", "AKIA..."),
        (r"\b(gh[oprsu]_|github_pat_|glpat-|hf_|xox[abprs]-|sk-(?=[\w-]{0,99}\d))[\w-]{14,}", r"\1..."),
        (r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*", "eyJ..."),
        (r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(?:-----END|\Z)", r"\1..."),
    )
)
#: Without any of this no rule applies: most texts are done with a look for each, a fiftieth of what one pattern of them takes.
_MARKS = (
    "@", "key", "pass", "pwd", "secret", "token", "sig", "cred", "auth", "bearer", "basic", "cookie", "code=", "state=", "jwt=",
    "sid=", "session=", "whsec_", "akia", "asia", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "hf_", "xox",
    "sk-", "eyj", "-----begin",
)  # fmt: skip
#: Characters that are looked at: patterns search them.
_MOST_SEARCHED = 16_384
_CUT = " ... "
_WORD = re.compile(r"\S*\Z")


def hide_secrets_in_text(text: str) -> str:
    """Return a text without what looks like a secret; one longer than 16,384 characters also loses its middle."""
    text = _shorten(text)
    folded = text.casefold()
    if not any(mark in folded for mark in _MARKS):
        return text
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def _shorten(text: str) -> str:
    """Return a text short enough to be searched. Words are not cut: half of a secret is not known as one."""
    if len(text) <= _MOST_SEARCHED:
        return text
    half = _MOST_SEARCHED // 2
    _, _, tail = text[-half:].partition("\n")
    return _WORD.sub("", text[:half]) + _CUT + tail
