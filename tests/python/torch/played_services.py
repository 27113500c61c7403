"""Packages that play wandb and comet_ml: what is called of them stands in a file, a JSON object per line."""

import json
import pathlib

_RECORD = """
import json, os

def tell(call, **given):
    with open({record!r}, "a") as file:
        file.write(json.dumps(dict(given, call=call, rank=os.environ.get({variable!r}, "0"))) + "\\n")
"""

_WANDB = """
run = None

class Config:
    def update(self, values, allow_val_change=False):
        tell("config", values=values)

class Run:
    config = Config()
    step = 0
    def log(self, scalars, step):
        self.step = step
        tell("log", scalars=scalars, step=step)
        if step == {fails_at}:
            raise ConnectionError("the service is gone")
    def finish(self, exit_code):
        tell("finish", exit_code=exit_code)

def init(**given):
    tell("init", given=given)
    if {refuses}:
        raise RuntimeError("nobody is logged in\\nand more lines")
    return Run()
"""

_COMET = """
class Experiment:
    def set_name(self, name):
        tell("name", name=name)
    def log_parameters(self, values, prefix):
        tell("config", values=values, prefix=prefix)
    def log_metrics(self, scalars, step):
        tell("log", scalars=scalars, step=step)
    def end(self):
        tell("finish")

def get_running_experiment():
    return None

def start(**given):
    tell("init", given=given)
    return Experiment()
"""


class Played:
    """In `folder`, which goes first on sys.path. `fails_at`: the step that cannot be logged."""

    def __init__(self, folder, fails_at=0, refuses=False, rank_variable="TERRACE_RANK"):
        self._record = pathlib.Path(folder) / "record.jsonl"
        tell = _RECORD.format(record=str(self._record), variable=rank_variable)
        for package, text in (("wandb", _WANDB), ("comet_ml", _COMET)):
            text = text.replace("{fails_at}", str(fails_at)).replace("{refuses}", str(refuses))
            (pathlib.Path(folder) / f"{package}.py").write_text(tell + text)

    def calls(self, name=None):
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        found = [json.loads(line) for line in lines]
        return [one for one in found if name is None or one["call"] == name]
