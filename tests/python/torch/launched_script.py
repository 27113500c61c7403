"""A script of terrace.initialize that launchers of ranks start as it is."""

import os
import subprocess
import tempfile
import textwrap

from ranks_torch import PATIENCE, RanksTest
from support_torch import ROOT

SCRIPT = f"""
    import sys; sys.path[:0] = [{str(ROOT / "python")!r}, {str(ROOT / "tests/python/torch")!r}]
    from support_torch import Mlp, config_of, seeded, terrace, torch
    config = config_of(accumulation=1)
    data = [torch.randn(32, generator=torch.Generator().manual_seed(number)) for number in range(24)]
    engine, _, loader, _ = terrace.initialize(
        model=seeded(Mlp), config=config, training_data=data, persistence_threshold=128)
    told = []
    for x in loader:
        loss = engine(x).square().mean()
        engine.backward(loss)
        engine.step()
        told.append(engine.get_global_grad_norm().hex())
    with open(f"{{__file__}}.{{engine.global_rank}}", "w") as file:  # what ranks print may be mixed up
        print(engine.global_rank, engine.world_size, terrace.comm.get_rank(), len(told), told[-1], file=file)
    engine.close()
    """


class LaunchedTest(RanksTest):
    def launched(self, *command):
        """The script trains on the two ranks of a launcher."""
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "train.py")
            with open(script, "w") as file:
                file.write(textwrap.dedent(SCRIPT))
            done = subprocess.run([*command, script], capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = []
            for rank in "01":
                with open(f"{script}.{rank}") as file:
                    lines.append(file.read().split())
        self.assertEqual([line[:4] for line in lines], [["0", "2", "0", "12"], ["1", "2", "1", "12"]])
        self.assertEqual(lines[0][4], lines[1][4])
