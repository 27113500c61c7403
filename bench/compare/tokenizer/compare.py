#!/usr/bin/env python3
"""compare.py ENCODE_TEXTS [--texts N] [--corpus FOLDER] [--keep FOLDER] [--time]

Trains BPEs of the kinds of GPT-2, Llama 3 and Qwen 2, of Llama 2, Mistral and Gemma (and odd ones) on the text of
FOLDER with the tokenizers library, encodes hard texts with it and with ENCODE_TEXTS, and compares the tokens and the
texts that they decode to. Needs `tokenizers`."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def byte_level(**keys):
    return pre_tokenizers.ByteLevel(**keys)


def special(*names):
    return [AddedToken(name, special=True, normalized=False) for name in names]


MARK = "\u2581"


def marks(*, first):
    replace = normalizers.Replace(" ", MARK)
    return normalizers.Sequence([normalizers.Prepend(MARK), replace]) if first else replace


def marked_decoder(*, strips):
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] if strips else steps)


def metaspace(scheme, split):
    return pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme=scheme, split=split)


def marked_kinds():
    """name -> (normalizer, pre-tokenizer, decoder, added tokens, keys of the model) of SentencePiece's"""
    bytes_too = dict(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    ends = special("<s>", "</s>")
    yield "llama2", marks(first=True), None, marked_decoder(strips=True), ends, bytes_too
    yield "mistral", None, metaspace("first", False), marked_decoder(strips=True), ends, bytes_too
    yield (
        "gemma",
        marks(first=False),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        marked_decoder(strips=False),
        ends + [AddedToken(t, normalized=False) for t in ["\n", "\n\n", MARK * 2, MARK * 3]],
        bytes_too,
    )
    yield (
        "phi3",
        marks(first=True),
        None,
        marked_decoder(strips=True),
        [
            AddedToken("<|endoftext|>", special=True, normalized=False, rstrip=True),
            AddedToken("<|im_end|>", special=True, normalized=False, lstrip=True),
            AddedToken("lone", normalized=True, single_word=True),
            AddedToken("<tool>", normalized=True),
        ],
        bytes_too,
    )
    yield (
        "metaspace_split",
        None,
        metaspace("always", True),
        decoders.Metaspace(replacement=MARK, prepend_scheme="always", split=True),
        ends,
        bytes_too,
    )
    yield "metaspace_nfc", normalizers.NFC(), metaspace("first", False), marked_decoder(strips=True), ends, bytes_too
    yield (
        "metaspace_digits",
        None,
        pre_tokenizers.Sequence([split(QWEN2, "removed", True), pre_tokenizers.Digits(), metaspace("first", True)]),
        marked_decoder(strips=True),
        special("<|endoftext|>"),
        bytes_too,
    )
    yield (
        "unknown_fused",
        marks(first=True),
        None,
        marked_decoder(strips=True),
        ends,
        dict(unk_token="<unk>", fuse_unk=True),
    )
    yield "unknown", None, metaspace("never", False), marked_decoder(strips=False), ends, dict(unk_token="<unk>")
    yield (
        "merged_next",
        marks(first=False),
        pre_tokenizers.Sequence([split(r"\n+", "merged_with_next"), split(r"\p{N}", "merged_with_previous")]),
        marked_decoder(strips=False),
        ends,
        bytes_too,
    )


def train_marked(normalizer, pre_tokenizer, decoder, added, model, trained_on):
    """As SentencePiece does it, words are learnt with their marks in front, and texts encoded as one word."""
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = metaspace("always", True)
    reserved = ["<unk>"]
    if model.get("byte_fallback"):
        reserved += [f"<0x{byte:02X}>" for byte in range(256)]
    trained_on(tokenizer, reserved)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = []  # bytes are none
    parts["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.add_tokens(added)
    return tokenizer


def kinds():
    """name -> (normalizer, pre-tokenizer, added tokens)"""
    plain = dict(add_prefix_space=False, use_regex=False)
    yield "gpt2", None, byte_level(add_prefix_space=False), special("<|endoftext|>")
    yield "gpt2_prefix_space", None, byte_level(add_prefix_space=True), special("<|endoftext|>")
    yield (
        "llama3",
        None,
        pre_tokenizers.Sequence([split(LLAMA3), byte_level(**plain)]),
        special("<|begin_of_text|>", "<|end_of_text|>"),
    )
    yield (
        "qwen2",
        normalizers.NFC(),
        pre_tokenizers.Sequence([split(QWEN2), byte_level(**plain)]),
        special("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    )
    yield "o200k", None, pre_tokenizers.Sequence([split(O200K), byte_level(**plain)]), special("<|endoftext|>")
    yield (
        "removed_inverted",
        None,
        pre_tokenizers.Sequence([split(QWEN2, "removed", True), byte_level(**plain)]),
        special("<|endoftext|>"),
    )
    yield (
        "digits",
        None,
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(add_prefix_space=True)]),
        special("<|endoftext|>"),
    )
    yield (
        "added",
        normalizers.NFC(),
        byte_level(add_prefix_space=False),
        [
            AddedToken("<|endoftext|>", special=True, normalized=False, lstrip=True),
            AddedToken("<|im_end|>", special=True, normalized=False, rstrip=True),
            AddedToken("lone", single_word=True, normalized=False),
            AddedToken("A\u030angstro\u0308m", normalized=True),
            AddedToken("<tool>", normalized=True, lstrip=True, rstrip=True),
            AddedToken("<tool", normalized=False, single_word=True),
            AddedToken("[MASK]", normalized=True),
        ],
    )


def train(normalizer, pre_tokenizer, added, corpus, ignore_merges):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train(
        [str(path) for path in corpus],
        trainers.BpeTrainer(vocab_size=6000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.add_tokens(added)
    return tokenizer


def merges_as_text(path):
    """The same file with merges in the older form."""
    content = json.loads(path.read_text())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    path.write_text(json.dumps(content))


def encode(program, tokenizer, all_texts):
    data = b"".join(b"%d\n%s" % (len(t), t) for t in (text.encode() for text in all_texts))
    result = subprocess.run([program, str(tokenizer), "--decode"], input=data, stdout=subprocess.PIPE, check=True)
    lines = result.stdout.decode().split("\n")
    return (
        [[int(token) for token in line.split()] for line in lines[:-1:2]],
        [bytes.fromhex(line).decode() for line in lines[1::2]],
    )


def compare(program, name, tokenizer, path, all_texts):
    ours, decoded = encode(program, path, all_texts)
    wrong = 0
    for text, mine, back in zip(all_texts, ours, decoded, strict=True):
        theirs = tokenizer.encode(text, add_special_tokens=False).ids
        their_text = tokenizer.decode(theirs, skip_special_tokens=False)
        if mine != theirs or back != their_text:
            wrong += 1
            if wrong <= 5:
                print(f"  {name}: {text!r}\n    reference {theirs} {their_text!r}\n    terrace   {mine} {back!r}")
    tokens = sum(len(line) for line in ours)
    print(f"{name}: {len(all_texts)} texts, {tokens} tokens, {wrong} differ")
    return wrong


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("program")
    arguments.add_argument("--texts", type=int, default=20000)
    arguments.add_argument("--corpus", type=pathlib.Path, default=pathlib.Path("/usr/share/common-licenses"))
    arguments.add_argument("--keep", type=pathlib.Path)
    arguments.add_argument("--time", action="store_true")
    options = arguments.parse_args()
    corpus = sorted(path for path in options.corpus.rglob("*") if path.is_file())
    all_texts = list(texts.all_texts(options.texts))
    folder = options.keep or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    wrong = 0

    def check(name, tokenizer, *, older=False, times=False):
        path = folder / f"{name}.json"
        tokenizer.save(str(path))
        if older:
            merges_as_text(path)
        differ = compare(options.program, name, tokenizer, path, all_texts)
        if options.time and times:
            text = "".join(path.read_text(errors="replace") for path in corpus) * 20
            begin = time.monotonic()
            tokenizer.encode(text)
            seconds = time.monotonic() - begin
            print(f"  reference {len(text.encode()) * 1e-6 / seconds:.1f} MB/s; terrace ", end="", flush=True)
            subprocess.run([options.program, str(path), "--time"], input=text.encode(), check=True)
        return differ

    for name, normalizer, pre_tokenizer, added in kinds():
        for ignore_merges in (False, True):
            tokenizer = train(normalizer, pre_tokenizer, added, corpus, ignore_merges)
            wrong += check(
                f"{name}{'_ignore_merges' if ignore_merges else ''}",
                tokenizer,
                older=ignore_merges,
                times=not ignore_merges,
            )

    def trained_on_corpus(tokenizer, reserved):
        tokenizer.train(
            [str(path) for path in corpus],
            trainers.BpeTrainer(vocab_size=6000, show_progress=False, special_tokens=reserved),
        )

    for name, *parts in marked_kinds():
        wrong += check(name, train_marked(*parts, trained_on_corpus), times=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
