"""Which keys a configuration may have, and with which values: docs/config.md, as a table (config_keys.tsv)."""

import json
import math
import os
import re
from collections import namedtuple

from .errors import ConfigError
from .suggestions import suggestion_for

Key = namedtuple("Key", "value default effect note")

# What keys of effect "mapped" stand for. zero_optimization has some without their prefix as well.
_MAPPED = {
    "bfloat16": "bf16",
    "monitor_config": "monitor",
    "monitor.tensorboard": "tensorboard",
    "monitor.csv_monitor": "csv_monitor",
    "optimizer.params.adamw_mode": "optimizer.params.adam_w_mode",
    "zero_optimization.aio": "aio",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save":
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.gather_fp16_weights_on_model_save":
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.cpu_offload": "zero_optimization.offload_optimizer.device",
    "zero_optimization.cpu_offload_params": "zero_optimization.offload_param.device",
    "zero_optimization.cpu_offload_param": "zero_optimization.offload_param.device",
    "zero_optimization.cpu_offload_use_pin_memory": "zero_optimization.offload_optimizer.pin_memory",
    "aio.thread_count": "aio.intra_op_parallelism",
    "aio.num_threads": "aio.intra_op_parallelism",
    "terrace.lora.r": "terrace.lora.rank",
    "terrace.lora.lora_alpha": "terrace.lora.alpha",
    "terrace.lora.target_modules": "terrace.lora.targets",
}
# The keys, at any depth of these sections, that divide a model into several parts.
_DIVIDING = ("expert_parallel", "tensor_parallel", "pipeline")
_DEGREES = ("autotp_size", "tp_size", "autoep_size", "ep_size", "sp_size", "pp_size", "num_stages", "stages", "degree")
_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
          "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

# Why a key is without effect here, where the program's reason is not true of the engine.
_NO_SCALARS = "the engine writes no scalars: give what your loop computes to your own log."
_NOTES_OF_ENGINE = {
    "wandb": _NO_SCALARS,
    "comet": _NO_SCALARS,
    "monitor.wandb": _NO_SCALARS,
    "monitor.comet": _NO_SCALARS,
    "disable_python_gc": "Python's garbage collector is yours to set (gc.disable()).",
    "dump_state": "engine.config has every value.",
}


def read_keys():
    """Every key by its path, "optimizer.params.lr"."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "config_keys.tsv")
    with open(path, encoding="utf-8") as file:
        keys = {row[0]: Key(*row[1:]) for row in (line.rstrip("\n").split("\t") for line in file)}
    for path, note in _NOTES_OF_ENGINE.items():
        keys[path] = keys[path]._replace(note=note)
    return keys


# Keys of whole models of torch, which the program's models have no use for.
_OF_PYTHON = {"data_types.buffer_dtype": "one of fp16, bf16, fp32"}
# What this package has in the place of a key that is refused.
_INSTEAD = {
    "data_types.keep_in_fp32_modules": "leave it out: buffers keep their types. For parameters convert the model yourself, "
    "and leave bf16.enabled and fp16.enabled out: then each parameter keeps its own",
}


class Checked:
    """.values by path, the paths of .autos (what is "auto") and .sections, .without_effect (a line for each key that
    says why), and .old_names (a line for each key that has another name now). Lines and errors name a key as it was
    written."""

    def __init__(self, found, where):
        self.keys = read_keys()
        self.where = where  # a function: the place of a key in the file, for errors
        self.values, self.autos, self.sections, self._said_by = {}, set(), set(), {}
        self.without_effect, self.old_names = [], []
        found = _plain(found)
        self._require_texts(found, "")
        self._section(found, "", "")

    def default(self, path):
        text = self.keys[path].default
        if text == "":
            return None
        try:
            return json.loads(text)
        except ValueError:
            return text

    def written(self, path):
        """The key that has set a value."""
        return self._said_by.get(path, path)

    def refuse(self, path, reason, advice):
        raise ConfigError("cannot use the configuration", f"{self.where(path)}{path}", reason, advice)

    def _require_texts(self, value, prefix):
        """Of every key, as in JSON; in a dict it may be anything."""
        for key, inner in value.items() if isinstance(value, dict) else ():
            if not isinstance(key, str):
                self.refuse(f"{prefix}{key!r}", f"a key of type {type(key).__name__} is no text",
                            "write every key as a text")
            self._require_texts(inner, f"{prefix}{key}.")
        for item in value if isinstance(value, list) else ():
            self._require_texts(item, prefix)

    def _section(self, section, prefix, written):
        """`prefix` is that of the keys, and `written` what stands for it in the configuration."""
        if not isinstance(section, dict):
            self.refuse(written.rstrip("."), f"{section!r} is no section", "write { ... }")
        for key, value in section.items():
            if key.startswith("_") or value is None:
                continue
            path = prefix + key
            if path not in self.keys:
                self.refuse(written + key, f"there is no such key in {written.rstrip('.') or 'the configuration'}",
                            suggestion_for(self.keys, prefix.rstrip("."), key)
                            or "leave it out; docs/config.md lists every key")
            self._key(path, value, written + key)

    def _key(self, path, value, written):
        effect = self.keys[path].effect
        self._said_by.setdefault(path, written)
        if effect == "mapped":
            self._mapped(path, value, written)
        elif value == "auto" and "auto" not in self.keys[path].value:
            self.autos.add(path)
        elif path in _OF_PYTHON:
            self._set(path, self._valid(_OF_PYTHON[path], value, written), written)
        elif effect == "refused":
            self._refused(path, value, written)
        elif self.keys[path].value == "a section" and self._has_keys(path):
            if path == "zero_optimization" and isinstance(value, bool):
                value = {"stage": int(value)}
            self.sections.add(path)
            self._section(value, path + ".", written + ".")
        elif path == "steps_per_print" and value == math.inf:
            pass  # accelerate's word for never
        else:
            value = self._valid(self.keys[path].value, value, written)
            if path in _DIVIDING and _divides(value):
                self.refuse(written, self.keys[path].note, "set its degrees to 1, or leave it out")
            if effect == "without effect":
                self.without_effect.append(f"{written}: {self.keys[path].note}")
            else:
                self._set(path, value, written)

    def _has_keys(self, path):
        return any(other.startswith(path + ".") for other in self.keys)

    def _mapped(self, path, value, written):
        target = _MAPPED.get(path) or path.replace("zero_optimization.", "zero_optimization.stage3_")
        if self.keys[target].value == "a section":
            self._section(value, target + ".", written + ".")
        elif target.endswith(".device"):
            if self._valid(self.keys[path].value, value, written):
                self._set(target, "cpu", written)
                self.old_names.append(f'{written}: it stands for "{target.split(".")[1]}": {{"device": "cpu"}}')
        elif self.keys[target].effect == "without effect":
            self.without_effect.append(f"{written}: {self.keys[target].note}")
        else:
            self._set(target, self._valid(self.keys[target].value, value, written), written)
            if path.startswith("zero_optimization.cpu_offload"):
                self.old_names.append(f"{written}: it stands for {target.partition('.')[2]}")

    def _set(self, path, value, written):
        if path in self.values and self.values[path] != value:
            self.refuse(written, f"it contradicts {self._said_by[path]}", "leave one of them")
        self.values[path], self._said_by[path] = value, written

    def _refused(self, path, value, written):
        wanted = self.keys[path].value
        harmless = {"only false": value is False, "only true": value is True,
                    "only with nothing enabled": not _enables(value)}
        words = wanted[5:].split(" or ") if wanted.startswith("only ") else []
        if not harmless.get(wanted, str(value) in words):
            advice = _INSTEAD.get(path, "leave it out" if wanted == "not accepted" else f"give {wanted}")
            self.refuse(written, self.keys[path].note, advice)

    def _valid(self, rule, value, written):
        try:
            return _value(rule, value)
        except ValueError as error:
            reason = str(error)
        self.refuse(written, f"{value!r} is not {reason}", f"give {reason}")


def _plain(value):
    """What JSON has for a value of a dict, which may have numbers of numpy, paths and tuples."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _enables(value):
    if isinstance(value, dict):
        return any(_enables(inner) for key, inner in value.items() if key == "enabled" or isinstance(inner, dict))
    return value is True


def _divides(value):
    """Whether a section asks for a degree of parallelism above 1."""
    if isinstance(value, list):
        return any(map(_divides, value))
    if not isinstance(value, dict):
        return False
    return any(_is_above_one(inner) if key in _DEGREES else _divides(inner) for key, inner in value.items())


def _is_above_one(value):
    try:
        return float(value) > 1
    except (TypeError, ValueError):
        return False


def _value(rule, value):
    """The value as its rule has it. Raises ValueError with the rule."""
    if rule == "any value" or rule.startswith("a section"):
        return value
    if rule.startswith("a number or a list of numbers") and isinstance(value, list):
        return [_value("a number" + rule[29:], item) for item in value]
    if rule.startswith("a list of numbers") and isinstance(value, list):
        return [_value("a number" + rule[17:], item) for item in value]
    if rule.startswith("a number of bytes") and isinstance(value, str):
        match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?i?B|)\s*", value)
        if not match or match.group(2) not in _UNITS:
            raise ValueError(rule)
        value = int(float(match.group(1)) * _UNITS[match.group(2)])
    if rule.startswith(("a number", "a whole number")):
        return _number(rule, value)
    fits = {
        "true or false": isinstance(value, bool),
        "a text": isinstance(value, str),
        "a list of sections": isinstance(value, list) and all(isinstance(item, dict) for item in value),
    }
    if rule.startswith(("a folder or a list", "a text or a list")):
        fits[rule] = isinstance(value, str) or isinstance(value, list) and all(isinstance(v, str) for v in value)
    if rule.startswith("one of "):
        words = {word.lower(): word for word in rule[7:].split(", ")}
        value = words.get(str(value).lower(), value)
        fits[rule] = value in words.values()
    if not fits.get(rule, False):
        raise ValueError(rule)
    return value


def _number(rule, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(rule)
    if rule.startswith("a whole number") or "bytes" in rule:
        if value != int(value):
            raise ValueError(rule)
        value = int(value)
    least = re.search(r"(?:of at least|from) (\S+)", rule)
    most = re.search(r"from \S+ to (below )?(\S+)", rule)
    if least and value < float(least.group(1)):
        raise ValueError(rule)
    if most and (value > float(most.group(2)) or most.group(1) and value == float(most.group(2))):
        raise ValueError(rule)
    return value
