"""What the tiny trainings of bench/crash and bench/attack may differ in, and the flags and files that say so.

A choice is one value for each factor of FACTORS. Some change the numbers that are trained; all others may only change where
things lie and when they move, so that every choice has a calm run in memory to be compared with."""

import json
import os
import re
import subprocess

TIMEOUT_SECONDS = 120


class Failure(Exception):
    """Something that is not as it should be; `kind` is the word under which a campaign counts it."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


class Value:
    """One value of a factor: flags, what it adds to the configuration, whether the numbers of a run depend on it, and how
    often it is drawn, against 1 for others."""

    def __init__(self, flags=(), config=None, numbers=False, share=1):
        self.flags = list(flags)
        self.config = dict(config or {})
        self.numbers = numbers
        self.share = share


def terrace_keys(numbers=False, share=1, **keys):
    return Value(config={"terrace": keys}, numbers=numbers, share=share)


def numbers(flags=(), share=1, **config):
    return Value(flags, config, numbers=True, share=share)


GATHER = "stage3_gather_16bit_weights_on_model_save"

# What may differ from run to run. Another factor is another line here.
FACTORS = {
    "engine": {kind: Value(["--engine", kind]) for kind in ("io_uring", "libaio", "threads")},
    "threads": {n: Value(["--threads", n]) for n in ("1", "2")},
    "paths": {"one": Value(), "two": Value()},  # see Setting.config()
    "parameters": {place: Value(["--offload-param", place]) for place in ("nvme", "cpu")},
    "states": {"plain": Value(), "compact": Value(["--compact-state"])},  # of the same numbers
    "update": {
        "after_backward": Value(["--update", "after_backward"]),
        "next_forward": Value(["--update", "next_forward"], share=2),
        "during_backward": Value(["--update", "during_backward"]),
        "auto": Value(["--update", "auto"]),
    },
    "host memory": {"least": Value(share=2), "some": Value(), "ample": Value()},  # see Setting.budgets()
    "device memory": {"least": Value(), "ample": Value()},  # the same
    "activations": {place: terrace_keys(offload_activations=place) for place in ("none", "nvme")},
    "order": {order: Value(["--microbatch-order", order]) for order in ("batch", "layer")},
    "commit": {
        "every step": terrace_keys(commit_every_steps=1, share=2),
        "every 2 steps": terrace_keys(commit_every_steps=2),
        "every 4 steps": terrace_keys(commit_every_steps=4),
        "every second": terrace_keys(commit_every_seconds=1),
    },
    "checkpoints": {
        "at the end": Value(),
        "every 5 steps": Value(["--save-every", "5"]),
        "every 3 steps, 2 kept": Value(["--save-every", "3", "--keep-last", "2"]),
    },
    "weights folder": {"none": Value(), "with each save": Value(config={"zero_optimization": {GATHER: True}})},
    "accumulation": {n: numbers(["--accumulation", n]) for n in ("1", "2")},
    "precision": {kind: numbers(**{kind: {"enabled": True}}) for kind in ("bf16", "fp16")},
    "clipping": {"1": numbers(gradient_clipping=1.0), "none": numbers(gradient_clipping=0.0)},
    "optimizer": {name: numbers(["--optimizer", name]) for name in ("AdamW", "Lion", "Muon")},
    "moments": {kind: terrace_keys(numbers=True, state_type=kind) for kind in ("fp32", "int8")},
    "weights": {
        "all": numbers(share=3),
        "some frozen": terrace_keys(numbers=True, frozen=["*.ln_*", "*.h.0.*"]),
        "adapters": terrace_keys(numbers=True, lora={"rank": 2, "alpha": 4}),
        "adapters over nf4": terrace_keys(numbers=True, lora={"rank": 2, "alpha": 4}, quantize_base="nf4"),
        "adapters over int8": terrace_keys(numbers=True, lora={"rank": 2, "alpha": 4}, quantize_base="int8"),
    },
    "disk": {"as it is": Value(), "20 MB/s": Value(["--inject", "rate=20MB/s"])},
}


def merged(into, more):
    for key, value in more.items():
        into[key] = merged(dict(into.get(key, {})), value) if isinstance(value, dict) else value
    return into


def engine_works(terrace, kind):
    report = json.loads(subprocess.run([terrace, "report", "--json"], capture_output=True, text=True).stdout)
    return report.get(f"{kind}_works", kind == "threads")


class Factors:
    """The table above, less what does not work here and with some factors held to one value."""

    def __init__(self, terrace, held=()):
        self.table = {factor: dict(values) for factor, values in FACTORS.items()}
        for kind in [kind for kind in FACTORS["engine"] if not engine_works(terrace, kind)]:
            del self.table["engine"][kind]
        for words in held:
            factor, _, value = words.partition("=")
            if value not in self.table.get(factor, {}):
                all_words = ", ".join(f"{name}={v}" for name in self.table for v in self.table[name])
                raise SystemExit(f"there is no {words} here: {all_words}")
            self.hold(factor, value)

    def hold(self, factor, value):
        self.table[factor] = {value: self.table[factor][value]}

    def draw(self, chance):
        choice = {}
        for factor, values in self.table.items():
            choice[factor] = chance.choices(list(values), [value.share for value in values.values()])[0]
        if choice["precision"] == "fp16" and "plain" in self.table["states"]:
            choice["states"] = "plain"  # compact masters are kept beside parameters in bf16 only
        if choice["optimizer"] == "Muon":
            choice["update"] = "after_backward"  # the step of a matrix is made of its whole gradient
        return choice


class Setting:
    """A training of `steps` steps with a choice of the factors."""

    def __init__(self, terrace, text, steps, choice):
        self.terrace = terrace
        self.text = text
        self.steps = steps
        self.choice = choice
        self.known_budgets = None

    def forms(self):
        """Itself, and the same training with masters in the other form, which a commit may change to and back."""
        if self.choice["precision"] != "bf16":
            return [self]
        other = "plain" if self.choice["states"] == "compact" else "compact"
        return [self, Setting(self.terrace, self.text, self.steps, {**self.choice, "states": other})]

    def values(self):
        return [FACTORS[factor][value] for factor, value in self.choice.items()]

    def words(self):
        return ", ".join(f"{factor} {value}" for factor, value in self.choice.items())

    def numbers(self):
        """The part of the choice that the numbers of a run depend on."""
        return tuple(value for factor, value in self.choice.items() if FACTORS[factor][value].numbers)

    def base_flags(self):
        model = ["--layers", "2", "--width", "64", "--heads", "2", "--context", "32", "--micro-batch", "2"]
        return [
            self.terrace,
            "train",
            *model,
            "--data",
            str(self.text),
            "--validation-fraction",
            "0",
            "--steps",
            str(self.steps),
        ]

    def calm_flags(self, folder):
        """Of a run of the same numbers with everything in memory, which also writes the weights in 16 bits."""
        config = {"zero_optimization": {"stage": 3, GATHER: True}}
        return self.base_flags() + self.settle(folder, [value for value in self.values() if value.numbers], config)

    def flags(self, folder):
        paths = [str(folder / name) for name in (["nvme"] if self.choice["paths"] == "one" else ["nvme", "nvme2"])]
        for path in paths:
            os.makedirs(path, exist_ok=True)
        on_nvme = {"device": "nvme", "nvme_path": paths if len(paths) > 1 else paths[0]}
        zero = {"stage": 3, "offload_optimizer": on_nvme}
        if self.choice["parameters"] == "nvme":
            zero["offload_param"] = on_nvme
        flags = self.base_flags() + self.settle(folder, self.values(), {"zero_optimization": zero})
        flags += ["--chunk-elements", "4096"]
        if self.known_budgets is None:
            self.known_budgets = self.budgets(flags)
        return flags + self.known_budgets

    def settle(self, folder, values, config):
        """Writes the configuration file; returns it and the flags of the values."""
        flags = ["--config", str(folder / "ds.json")]
        for value in values:
            merged(config, value.config)
            flags += value.flags
        (folder / "ds.json").write_text(json.dumps(config))
        return flags

    def budgets(self, flags):
        """Budgets between the least that is accepted and one that caches half, asked of the program; it tells them only
        where no state lies that the question would destroy."""
        bounded = [tier for tier in ("device", "host") if self.choice[f"{tier} memory"] != "ample"]
        if not bounded:
            return []
        question = flags + ["--save", "nowhere"]
        for tier in bounded:
            question += [f"--{tier}-memory", "1KiB"]
        refused = subprocess.run(
            question, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment("/nowhere")
        )
        least = [int(bytes) for bytes in re.findall(r"needs at least [^(]*\((\d+) bytes\)", refused.stderr)]
        if len(least) != len(bounded):
            raise Failure("REFUSED SETTING", "the least memory is not said: " + refused.stderr)
        budgets = []
        for tier, bytes in zip(bounded, least):
            more = 600 * 1024 if self.choice[f"{tier} memory"] == "some" else 0
            budgets += [f"--{tier}-memory", str(bytes + more)]
        return budgets


def environment(folder):
    """So that runs beside each other take no turns on the drive, and what was measured elsewhere is not taken up."""
    return dict(os.environ, XDG_RUNTIME_DIR=str(folder), XDG_CACHE_HOME=str(folder), LC_ALL="C")
