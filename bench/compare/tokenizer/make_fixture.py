#!/usr/bin/env python3
"""make_fixture.py FOLDER: writes what tests/reference/data/tokenizers holds: small tokenizers of several kinds, and
texts with the tokens that the tokenizers library gives them, and what these decode to."""

import json
import pathlib
import random
import sys

import compare
import texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

WANTED = {
    "gpt2": 40,
    "llama3": 40,
    "qwen2": 40,
    "added": 80,
    "llama2": 40,
    "mistral": 40,
    "gemma": 40,
    "phi3": 60,
    "metaspace_split": 30,
    "unknown_fused": 30,
}


def begins_with(tokenizer, begin):
    return processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )


def byte_level_kinds(pool):
    for name, normalizer, pre_tokenizer, added in compare.kinds():
        if name not in WANTED:
            continue
        tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(
            pool,
            trainers.BpeTrainer(
                vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
            ),
        )
        tokenizer.add_tokens(added)
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        if name == "llama3":
            tokenizer.post_processor = processors.Sequence(
                [processors.ByteLevel(trim_offsets=False), begins_with(tokenizer, "<|begin_of_text|>")]
            )
        yield name, tokenizer


def marked_kinds(pool):
    def trained_on_pool(tokenizer, reserved):
        tokenizer.train_from_iterator(
            pool,
            trainers.BpeTrainer(
                vocab_size=len(reserved) + 240, limit_alphabet=120, show_progress=False, special_tokens=reserved
            ),
        )

    for name, *parts in compare.marked_kinds():
        if name not in WANTED:
            continue
        tokenizer = compare.train_marked(*parts, trained_on_pool)
        if name == "llama2":
            tokenizer.post_processor = begins_with(tokenizer, "<s>")
        yield name, tokenizer


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    rng = random.Random(5)
    pool = [texts.random_text(rng) for _ in range(400)]
    fixed = [
        "",
        " ",
        "a",
        " a",
        "a  b",
        "\u2581a",
        "I'll don't 'S",
        "\n\n  a\n",
        "e\u0301 A\u030a \u1100\u1161",
        "\u09fe\u09bc",
        "x" * 200,
    ]
    for name, tokenizer in [*byte_level_kinds(pool), *marked_kinds(pool)]:
        (folder / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=True) + "\n")
        chosen = fixed + [text for text in rng.sample(pool, WANTED[name]) if len(text) < 160]
        lines = []
        for text in chosen:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            lines.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
        body = ",\n".join(json.dumps(line, ensure_ascii=True) for line in lines)
        (folder / f"{name}_texts.json").write_text(f"[\n{body}\n]\n")


if __name__ == "__main__":
    main()
