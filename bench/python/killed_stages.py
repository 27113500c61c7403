"""Pipelines of which a stage is killed at any moment, of a step, a save or a load: the others end, and another number of stages
and of processes goes on from the last checkpoint that is whole, until the training is over. attack has the campaign."""

import os
import pathlib
import random
import shutil
import signal
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python/torch"))

import ranks_torch
from pipe_models import MICRO_BATCHES, gpt, precise, train
from support_torch import config_of, engine_of, masters

STEPS = 5
SIZES = [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (1, 2)]  # stages, and processes of each
MODELS = [({}, "fp32", "AdamW"), ({"is_tied": True}, "bf16", "AdamW"), ({"frozen": (2, 3)}, "fp16", "Muon")]
PLACES = [("cpu", "cpu"), ("cpu", "nvme"), ("nvme", "nvme")]


def training(size, model, places, folder, drive, victim=None, delay=0.0):
    """body(rank): goes on from the last checkpoint, saves every step, and tells {step: (loss, norm)} and the masters here."""
    stages, data = size
    named, precision, optimizer = model

    def body(rank):
        if rank == victim:
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        config = config_of(*places, drive, MICRO_BATCHES // data, 0.1, precision, optimizer=optimizer)
        engine = engine_of(gpt(stages, **named), precise(config, precision), persistence_threshold=0)
        path, state = engine.load_checkpoint(folder) if os.path.exists(os.path.join(folder, "latest")) else (None, {})
        told = {}
        for step in range(state["at"] if path else 0, STEPS):
            told[step] = train(engine, 1, step)[0]
            # One tag is written over, as often as new ones are made. One stage and several write different ones.
            tag = f"{'stages' if stages > 1 else 'whole'}{step % 2}"
            engine.save_checkpoint(folder, tag, {"at": step + 1})
        found = masters(engine)
        engine.close()
        return told, found

    return body


class KilledStages:
    def __init__(self, options, counts):
        self._options, self._counts = options, counts
        self._calm = {}
        ranks_torch.PATIENCE = 180

    def run(self):
        number = 0
        while self._counts["killed"] < self._options.count:
            self._case(number)
            number += 1

    def _whole(self, place, model):
        """What one process comes to that nothing disturbs."""
        if place not in self._calm:
            folder = self._options.folder / f"calm {place}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (end,) = ranks_torch.together(1, training((1, 1), model, PLACES[0], str(folder), None))
            self._calm[place] = end.value
        return self._calm[place]

    def _case(self, number):
        chance = random.Random(f"{self._options.seed} {number}")
        place = chance.randrange(len(MODELS))
        told, values = self._whole(place, MODELS[place])
        folder = self._options.folder / f"case {number}"
        while True:
            size, places = chance.choice(SIZES), chance.choice(PLACES)
            drive = folder / "drive"
            shutil.rmtree(drive, ignore_errors=True)
            drive.mkdir(parents=True)
            victim, delay = chance.randrange(size[0] * size[1]), chance.uniform(0.2, 6.0)
            body = training(size, MODELS[place], places, str(folder / "saved"), str(drive), victim, delay)
            ends = ranks_torch.together(size[0] * size[1], body)
            was_killed = ends[victim].signal_number == signal.SIGKILL
            self._counts["killed"] += was_killed
            if any(end.signal_number for rank, end in enumerate(ends) if rank != victim):
                return self._say("hung", number, f"{size}, rank {victim} killed after {delay:.1f} s")
            found = [end.value for end in ends if end.value is not None]
            for here, _ in found:
                if any(repr(here[step]) != repr(told[step]) for step in here):
                    return self._say("wrong", number, f"{size}: {here} instead of {told}")
            if len(found) < len(ends):
                if not was_killed:
                    text = next(end.text for end in ends if end.value is None)
                    return self._say("refused", number, f"{size}: {text[-600:]}")
                continue
            merged = {name: value for _, here in found for name, value in here.items()}
            if merged != values:
                return self._say("wrong", number, f"{size}: other masters")
            self._counts["identical"] += 1
            return shutil.rmtree(folder)

    def _say(self, kind, number, text):
        self._counts[kind] += 1
        print(f"{kind}: case {number}: {text}", flush=True)
