"""A training that a launcher starts again when one of its ranks dies or raises: the script that is started, and what a test
reads of all its lives."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from ranks_torch import PATIENCE, RanksTest, terrace, torch

STEPS = 6
MICRO_BATCHES = 6  # of a step, over all ranks
RAISED = "the folder of the images has gone away"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def config_of(keeps, folder):
    is_nvme = keeps == "commits"
    place = {"device": "nvme", "nvme_path": str(folder / "drive")} if is_nvme else {"device": "cpu"}
    return {
        "train_batch_size": 2 * MICRO_BATCHES,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-2}},
        "zero_optimization": {"stage": 3, "offload_param": place, "offload_optimizer": place},
        "terrace": {
            "host_memory": "32MiB",
            "threads": 1,
            "durable": is_nvme,
            "commit_every_steps": 1 if is_nvme else 0,
            "commit_every_seconds": 0,
        },
    }


def train(folder, keeps, accidents):
    """A life of a rank, which begins where the one before has ended. An accident is (rank, step, micro-batch, how); each
    happens once, in the order of the list, in the middle of a backward pass."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 48), torch.nn.Tanh(), torch.nn.Linear(48, 48), torch.nn.Linear(48, 4)
    )
    config = config_of(keeps, folder)
    engine = terrace.initialize(model=model, config=config, resume="auto", persistence_threshold=64)[0]
    if keeps == "checkpoints":
        engine.load_checkpoint(folder / "saved")
    rank, ranks = engine.global_rank, engine.world_size
    tell(folder, rank, begins_at=engine.global_steps, ranks=ranks, process=os.getpid())
    while engine.global_steps < STEPS:
        step = engine.global_steps + 1
        for number in range(rank, MICRO_BATCHES, ranks):
            generator = torch.Generator().manual_seed(100 * step + number)
            found = engine(torch.randn(2, 16, generator=generator))
            for accident, (of_rank, of_step, of_number, how) in enumerate(accidents):
                if (of_rank, of_step, of_number) == (rank, step, number) and is_next(folder, accident):
                    wait_for_others(folder, rank, ranks, step)
                    found.register_hook(lambda gradient, how=how: meet_with(how))
            loss = found.square().mean()
            engine.backward(loss)
            engine.step()
            tell(folder, rank, step=step, number=number, loss=loss.item().hex())
        tell(folder, rank, step=step, norm=engine.get_global_grad_norm().hex())
        if keeps == "checkpoints" and step % 2 == 0:
            engine.save_checkpoint(folder / "saved")
    if keeps == "commits":
        engine.finish_commit()
    ends = {name: engine.master(one).double().flatten().tolist() for name, one in model.named_parameters()}
    tell(folder, rank, ends={name: [number.hex() for number in numbers] for name, numbers in ends.items()})
    engine.close()


def tell(folder, rank, **told):
    with open(folder / f"told-{rank}", "a") as file:
        file.write(json.dumps(told) + "\n")


def is_next(folder, accident):
    """Each happens once, and the later ones after the earlier."""
    if accident and not (folder / f"accident-{accident - 1}").exists():
        return False
    try:
        (folder / f"accident-{accident}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for_others(folder, rank, ranks, step):
    """Until all are in the step."""
    others = [folder / f"told-{other}" for other in range(ranks) if other != rank]
    while not all(f'"step": {step},' in other.read_text() for other in others):
        time.sleep(0.01)


def meet_with(how):
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(RAISED)


class Told:
    """What all ranks have told in all lives. A step that a later life repeats has the same numbers again."""

    def __init__(self, folder):
        self.lives, self.losses, self.norms, self.ends = [], {}, {}, []
        for rank, path in enumerate(sorted(folder.glob("told-*"))):
            for line in path.read_text().splitlines():
                self._take(rank, json.loads(line))

    def _take(self, rank, told):
        if "begins_at" in told and rank == 0:
            self.lives.append((told["begins_at"], told["ranks"]))
        elif "loss" in told:
            self.losses.setdefault((told["step"], told["number"]), set()).add(told["loss"])
        elif "norm" in told:
            self.norms.setdefault(told["step"], set()).add(told["norm"])
        elif "ends" in told and told["ends"] not in self.ends:
            self.ends.append(told["ends"])


class RestartsTest(RanksTest):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def launched(self, command, keeps, accidents):
        """The end of a run of the script below a launcher, and what its ranks have told."""
        (self.folder / "drive").mkdir()
        script = [*command, __file__, str(self.folder), keeps, json.dumps(accidents)]
        environment = dict(os.environ, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        return done, Told(self.folder)

    def goes_on(self, count, keeps):
        """Somebody starts what has ended again."""
        self.on_ranks(count, lambda rank: train(self.folder, keeps, []))

    def assert_undisturbed(self, keeps):
        """All lives together have the bits of a run to which nothing has happened."""
        with tempfile.TemporaryDirectory() as alone:
            folder = pathlib.Path(alone)
            (folder / "drive").mkdir()
            self.on_ranks(1, lambda rank: train(folder, keeps, []))
            calm = Told(folder)
        told = Told(self.folder)
        self.assertEqual(len(calm.losses), STEPS * MICRO_BATCHES)
        self.assertEqual(told.losses, calm.losses)
        self.assertEqual(told.norms, calm.norms)
        self.assertEqual(told.ends, calm.ends)

    def assert_death_is_told(self, said, rank, of, step, goes_on_at):
        """Who has died, and what was kept; a commit may have become durable since."""
        death = rf"rank {rank} of {of} \(host \S+, process \d+\) died in step {step}\b.*\n.*\n"
        told = re.search(death + r" +the (?:state is that|last checkpoint is that) of step (\d+)", said)
        self.assertIsNotNone(told, said)
        self.assertIn(goes_on_at - int(told.group(1)), (0, 1))
        self.assertLess(goes_on_at, step)


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun would end ranks while they say why they end
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    train(pathlib.Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
