"""Progress of a training: checkpoints in a folder, and commits on nvme that survive any crash."""

import base64
import json
import os
import shutil
import time

import torch

from .. import safetensors
from ..errors import ConfigError, CorruptError, IoError

_WEIGHTS, _MOMENTS, _PROGRESS = "model.safetensors", "optimizer.safetensors", "progress.pt"
_LOAD = "cannot load a checkpoint"


class Checkpoints:
    def __init__(self, engine, store, values, exports):
        self._engine = engine
        self._store = store
        self._values = values
        self._exports = exports
        self._keeps_commits = bool(engine.config.store_options.get("durable")) and not store.why_no_commits
        self._is_new = False  # an update has run since begin_if_due
        self._random = None
        self._last_commit = time.monotonic()
        self.client_state = {}

    # --- Progress: what is in no tensor ---

    def _progress(self):
        engine = self._engine
        scheduler = engine.lr_scheduler
        return {
            "steps": engine.global_steps,
            "skipped_steps": engine.skipped_steps,
            "loss_scale": engine.scaler.state(),
            "groups": [
                {name: value for name, value in group.items() if name != "params" and _is_plain(value)}
                for group in engine.optimizer.param_groups
            ],
            "scheduler": scheduler.state_dict() if hasattr(scheduler, "state_dict") else None,
        }

    def _restore(self, progress, with_scheduler=True):
        engine = self._engine
        engine.global_steps = progress["steps"]
        engine.skipped_steps = progress["skipped_steps"]
        engine.micro_steps = 0
        engine.scaler.restore(progress["loss_scale"])
        if with_scheduler:
            for group, saved in zip(engine.optimizer.param_groups, progress["groups"]):
                group.update(
                    {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
                )
            if progress["scheduler"] is not None and hasattr(engine.lr_scheduler, "load_state_dict"):
                engine.lr_scheduler.load_state_dict(progress["scheduler"])

    # --- Commits ---

    def note_update(self):
        """What comes after an update, such as the next batch, may draw random numbers before the commit is made."""
        self._is_new = self._keeps_commits
        if self._is_new:
            self._random = torch.get_rng_state()

    def begin_if_due(self):
        """Between steps, where the configuration asks for commits."""
        config, engine = self._engine.config, self._engine
        if not self._is_new:
            return
        self._is_new = False
        by_steps = config.commit_every_steps and engine.global_steps % config.commit_every_steps == 0
        by_time = (
            config.commit_every_seconds and time.monotonic() - self._last_commit >= config.commit_every_seconds
        )
        if by_steps or by_time:
            self.begin(self.client_state, False, self._random)

    def begin(self, client_state, retain, random=None):
        self._values.come_to_rest("commit")
        if client_state is not None:
            self.client_state = client_state
        progress = dict(
            self._progress(),
            client_state=self.client_state,
            random=base64.b64encode(bytes((torch.get_rng_state() if random is None else random).tolist())).decode(),
        )
        try:
            text = json.dumps(progress)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "cannot commit",
                "client_state or the state of the scheduler",
                str(error),
                "give what JSON holds: numbers, texts, lists and dicts",
            ) from None
        self._store.begin_commit(text, retain)
        self._last_commit = time.monotonic()

    def take_up(self):
        """After a resume: progress, schedule and torch's random numbers go on from the commit."""
        text = self._store.taken_up_text
        if text:
            progress = json.loads(text)
            self._restore(progress)
            self.client_state = progress["client_state"]
            torch.set_rng_state(torch.tensor(list(base64.b64decode(progress["random"])), dtype=torch.uint8))

    # --- Checkpoints in a folder ---

    def save(self, folder, tag, client_state, save_latest):
        self._values.come_to_rest("save a checkpoint")
        tag = str(tag) if tag is not None else f"global_step{self._engine.global_steps}"
        place = os.path.join(folder, tag)
        aside = f"{place}.aside-{os.getpid()}"
        kind = self._engine.optimizer.kind
        try:
            os.makedirs(aside)
            weights, moments = self._exports.weights(with_masters=True), self._exports.moments(kind)
            safetensors.write(os.path.join(aside, _WEIGHTS), weights.tensors, weights.values, {"format": "pt"})
            safetensors.write(os.path.join(aside, _MOMENTS), moments.tensors, moments.values)
            _save_durably(
                os.path.join(aside, _PROGRESS),
                dict(
                    self._progress(),
                    client_state=client_state,
                    kind=kind,
                    tensor_steps=self._exports.steps_by_name(),
                ),
            )
            _require_loadable(aside)
            if os.path.exists(place):
                shutil.rmtree(place)
            os.rename(aside, place)
            if save_latest:
                _write_durably(os.path.join(folder, "latest"), tag)
        except OSError as error:
            raise IoError(
                "cannot save a checkpoint",
                place,
                error.strerror or str(error),
                "see that the path is right, and that its drive has room",
            ) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return True

    def load(self, folder, tag, with_optimizer, with_scheduler):
        if tag is None:
            try:
                with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
                    tag = file.read().strip()
            except FileNotFoundError:
                return None, {}
            except UnicodeDecodeError as error:
                raise CorruptError(_LOAD, os.path.join(folder, "latest"), str(error), "give the tag") from None
        place = os.path.join(folder, str(tag))
        progress = _progress_at(place)
        if with_optimizer and progress["kind"] != self._engine.optimizer.kind:
            raise ConfigError(
                _LOAD,
                place,
                f"its optimizer is {progress['kind']}, and that of the engine {self._engine.optimizer.kind}",
                "load it with load_optimizer_states=False",
            )
        self._exports.load_weights(os.path.join(place, _WEIGHTS))
        if with_optimizer:
            self._exports.load_moments(os.path.join(place, _MOMENTS), progress["kind"], progress["tensor_steps"])
            self._restore(progress, with_scheduler)
        return place, progress["client_state"]


def has_commit(options):
    """Whether the nvme paths of a store's options hold a commit of an earlier run (docs/nvme_format.md)."""
    for path in options["nvme_paths"]:
        folder = os.path.join(path, options.get("tier_name") or "", "terrace-tier")
        if os.path.isdir(folder) and any(name.startswith(("commit-", "epoch-")) for name in os.listdir(folder)):
            return True
    return False


def _progress_at(place):
    path = os.path.join(place, _PROGRESS)
    try:
        return torch.load(path, weights_only=True)
    except OSError as error:
        reason, advice = error.strerror or str(error), "name a folder and a tag that save_checkpoint was given"
        raise IoError(_LOAD, place, reason, advice) from error
    except Exception as error:  # torch has no class for a file that is damaged
        reason = str(error).partition("\n")[0] or "it ends early"
        raise CorruptError(_LOAD, path, reason, "load an earlier checkpoint") from error


def _require_loadable(aside):
    """torch writes any object, and reads some alone without running code of the file."""
    try:
        _progress_at(aside)
    except CorruptError as error:
        raise ConfigError(
            "cannot save a checkpoint",
            "client_state or the state of the scheduler",
            str(error.__cause__).partition("\n\n")[0],
            "give numbers, texts, tensors, lists and dicts",
        ) from None


def _is_plain(value):
    return isinstance(value, (int, float, str, bool, tuple, list)) or value is None


def _save_durably(path, value):
    with open(path, "wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())


def _write_durably(path, text):
    with open(f"{path}.aside", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.aside", path)
