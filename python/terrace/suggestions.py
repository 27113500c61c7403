"""What a misspelt word was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST_WORD = 64  # that is compared with others


def suggestion_among(word: str, known: Iterable[str]) -> str:
    """'did you mean "lr"?', or "" where no known word is near. A word of three letters is nearly none."""
    if not 3 < len(word) <= _LONGEST_WORD:
        return ""
    from difflib import get_close_matches  # takes a while to load

    words = {one.lower(): one for one in known}
    near = get_close_matches(word.lower(), words, 1, 0.7)
    return f'did you mean "{words[near[0]]}"?' if near else ""
