"""Texts that are hard to cut: every script, combining marks, emoji, white space of all kinds, control characters,
random bytes made valid, added tokens in odd places. Seeded: the same texts every time. Characters that
this Python does not know (of a Unicode later than its own, 14 for Python 3.11, as of PCRE2 10.42) are left out: the
reference knows later ones, and what is a letter differs there."""

import random
import unicodedata

WORDS = """the quick brown fox don't I'll we've they're it's I'M CAN'T naïve café Straße 北京 日本語 にほん 한국어 русский
Ελληνικά עברית العربية हिन्दी ไทย ქართული Հայերեն 12345 3.14159 1,000,000 x=y+z; foo(bar) #include <a> ```py
https://example.org/a?b=c&d=%20 e-mail@host.tld snake_case camelCase SCREAMING \\n \\t ''' \"\"\" -- ---- ==== !!! ... …
½ ² Ⅷ ٣ ० 𝟘 ⓐ ſ 'ſ 'S 'LL 'Re K ﬆ ß ẞ İ ı ǆ""".split()
SPACES = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \n",
    "\n ",
    " \n \n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u2028",
    "\u0085",
    "\u180e",
    "\u200b",
    "\ufeff",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1f",
]
MARKS = [
    "\u0301",
    "\u0308",
    "\u0327",
    "\u05b0",
    "\u064b",
    "\u0e31",
    "\u3099",
    "\u20dd",
    "\ufe0f",
    "\u200d",
    "\u1100\u1161\u11a8",
    "\u212b",
    "\u2126",
    "\uac00\u11a8",
    "\u0958",
    "\u0340",
    "\u0344",
    "\u0f73",
    "\u1d15e",
]
EMOJI = ["😀", "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪", "❤️", "👍🏽", "𓀀", "𝔘"]
TAGS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|end",
    "oftext|>",
    "<tool>",
    "[MASK]",
    "Ångström",
    "lone",
]


def known(text):
    return "".join(c for c in text if unicodedata.category(c) != "Cn")


def scripts():
    """A few characters of every block of the basic planes that has letters, numbers or marks."""
    for start in range(0, 0x20000, 0x40):
        run = known("".join(chr(c) for c in range(start, start + 0x40) if not 0xD800 <= c < 0xE000))
        if any(unicodedata.category(c) != "Co" for c in run):
            yield run


def random_text(rng):
    parts = []
    for _ in range(rng.randrange(1, 40)):
        kind = rng.random()
        if kind < 0.4:
            parts.append(rng.choice(WORDS))
        elif kind < 0.7:
            parts.append("".join(rng.choice(SPACES) for _ in range(rng.choice([1, 1, 1, 2, 5]))))
        elif kind < 0.78:
            parts.append(rng.choice("aeousnAE가かग") + "".join(rng.choice(MARKS) for _ in range(rng.randrange(1, 4))))
        elif kind < 0.83:
            parts.append(rng.choice(EMOJI))
        elif kind < 0.88:
            parts.append(rng.choice(TAGS))
        elif kind < 0.91:
            parts.append(
                chr(
                    rng.choice(
                        [rng.randrange(0, 0x80), rng.randrange(0x80, 0xD800), rng.randrange(0xE000, 0x11000 * 3)]
                    )
                )
            )
        elif kind < 0.94:
            parts.append("".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 12))))
        elif kind < 0.97:
            parts.append(rng.choice("=-*#ab ") * rng.randrange(2, 60))
        else:
            parts.append(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 20))).decode("utf-8", "replace"))
    return known("".join(parts))


def all_texts(count, seed=1):
    rng = random.Random(seed)
    yield from ["", " ", "\n", "a", "  a", "a  ", " \n\n a", "'", "'ll", "'l", "''s", "I'll 'll", "\x00", "\x00a\x00"]
    for run in scripts():
        yield run
        yield " ".join(run)
    for _ in range(count):
        yield random_text(rng)
