"""What a misspelt word was meant to be, by the rules of the program (runtime/config/schema/suggestions.cpp)."""

import os

_LONGEST_KEY = 64  # that is compared with others
_MOST_SECTIONS = 3  # that are named as the home of a key
_OTHER_NAMES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "config_other_names.tsv")


def suggestion_among(word, known):
    """'did you mean "lr"?', or "" where no known word is near. A word of three letters is nearly none."""
    if not 3 < len(word) <= _LONGEST_KEY:
        return ""
    best = _nearest(word, tolerance(word), known)
    return f'did you mean "{best}"?' if best is not None else ""


def suggestion_for(keys, section, written):
    """What to write in the place of a key that `section` does not have: 'did you mean "..."?', "it belongs to ...",
    "set ... instead"; "" where nothing is near. `keys` are those of the configuration, by path."""
    if len(written) > _LONGEST_KEY:
        return ""
    key = written.replace("-", "_")
    paths = [path.rpartition(".") for path in keys]
    here = _nearest(key, tolerance(key), [name for where, _, name in paths if where == section])
    if here is not None and edit_distance(key, here) <= 1:
        return f'did you mean "{here}"?'
    for name, path in _other_names():
        if not edit_distance(name, key):
            return f"set {path} instead"
    homes = [where for where, _, name in paths if name == key and keys[_joined(where, name)].effect != "refused"]
    if 0 < len(homes) <= _MOST_SECTIONS:
        return "it belongs to " + " or ".join(where or "the top level" for where in homes)
    if here is not None:
        return f'did you mean "{here}"?'
    # In another section only what is nearly the same.
    anywhere = _nearest(key, 0 if len(key) <= 5 else len(key) // 6, [name for _, _, name in paths])
    if anywhere is None or not edit_distance(key, anywhere):  # at home in too many sections
        return ""
    where = next(where for where, _, name in paths if name == anywhere)
    return f'did you mean "{anywhere}" in {where or "the top level"}?'


def tolerance(word):
    """Longer names may differ in more places and still be meant; names of one or two letters in none."""
    return 0 if len(word) <= 2 else 1 if len(word) <= 5 else min(4, 1 + len(word) // 5)


def edit_distance(one, other):
    """Letters that are put in, left out, changed or swapped with the next; capitals are as good as small ones."""
    one, other = one.lower(), other.lower()
    before, last = [], list(range(len(other) + 1))
    for i in range(1, len(one) + 1):
        row = [i]
        for j in range(1, len(other) + 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (one[i - 1] != other[j - 1])))
            if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def _nearest(word, furthest, known):
    """The first of the nearest known words, or None."""
    best, least = None, furthest + 1
    for one in known:
        if abs(len(one) - len(word)) < least:
            distance = edit_distance(word, one)
            if distance < least:
                best, least = one, distance
    return best


def _other_names():
    with open(_OTHER_NAMES, encoding="utf-8") as file:
        return [line.rstrip("\n").split("\t") for line in file]


def _joined(section, name):
    return f"{section}.{name}" if section else name
