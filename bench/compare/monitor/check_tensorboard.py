"""Reads what a resumed run wrote for TensorBoard with TensorBoard's own reader and compares it with the CSV files.

    venv/bin/python bench/compare/monitor/check_tensorboard.py build/release/tools/terrace

Needs the package tensorboard. The run is stopped at step 4, goes on to step 8, and goes on from step 4 once more, as
after a crash: every step must be there once, with the values of the last run. Prints one line per tag; exits 1 where
the two differ.
"""

import csv
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

terrace = pathlib.Path(sys.argv[1]).resolve()
folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-tensorboard-"))
(folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 200)
target = {"enabled": True, "output_path": str(folder), "job_name": "job"}
config = {"train_batch_size": 4, "wall_clock_breakdown": True, "tensorboard": target, "csv_monitor": target}
(folder / "ds.json").write_text(json.dumps(config))


def train(steps, checkpoint, *more):
    subprocess.run(
        [
            terrace,
            "train",
            "--config",
            folder / "ds.json",
            "--data",
            folder / "text.txt",
            "--layers",
            "1",
            "--width",
            "32",
            "--heads",
            "2",
            "--context",
            "16",
            "--eval-every",
            "2",
            "--steps",
            str(steps),
            "--save",
            folder / checkpoint,
            *more,
        ],
        check=True,
        capture_output=True,
    )


train(4, "first")
shutil.copytree(folder / "first", folder / "second")
train(8, "first", "--resume", folder / "first")
train(8, "second", "--resume", folder / "second")

events = EventAccumulator(str(folder / "job"), size_guidance={"scalars": 0})
events.Reload()
failures = 0
for tag in events.Tags()["scalars"]:
    shown = [(point.step, point.value) for point in events.Scalars(tag)]
    with open(folder / "job" / (tag.replace("/", "_") + ".csv"), newline="") as file:
        rows = list(csv.reader(file))
    written = [(int(step), float(value)) for step, value in rows[1:]]
    wanted = [4 * step for step in range(1, 9)] if tag.startswith("Train") else [8, 16, 24, 32]
    same = [step for step, _ in shown] == wanted == [step for step, _ in written] and all(
        abs(a - b) <= 1e-6 * abs(b) for (_, a), (_, b) in zip(shown, written)
    )
    failures += not same
    print("same" if same else "DIFFERENT", tag, len(shown))
shutil.rmtree(folder)
sys.exit(failures > 0 or not events.Tags()["scalars"])
