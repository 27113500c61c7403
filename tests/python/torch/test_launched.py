"""terrace.initialize trains in one process, and refuses to be one of several: each would train a model of its own."""

import os
import tempfile

from support_torch import EngineTest, Mlp, config_of, engine_of, isolated, seeded, terrace, torch, train

# What each launcher sets in the second of two processes.
LAUNCHERS = {
    "torchrun": {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
    "MPICH": {"PMI_RANK": "1", "PMI_SIZE": "2"},
    "Slurm": {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"},
    "Terrace": {"TERRACE_RANK": "1", "TERRACE_RANKS": "2"},
}


class Launched(EngineTest):
    def refused(self, **named):
        error = self.raised(terrace.ConfigError, engine_of, seeded(Mlp), **named)
        self.assertEqual((error.what, error.subject), ("cannot train a model in several processes", "rank 1 of 2"))
        for way in ("one process", "DistributedDataParallel", "OffloadAdamW", "terrace train"):
            self.assertIn(way, error.advice)
        return error

    @isolated
    def test_every_launcher_of_several_processes_is_seen(self):
        for name, variables in LAUNCHERS.items():
            os.environ.update(variables)
            self.assertIn(name, self.refused().reason)
            for variable in variables:
                del os.environ[variable]
        os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
        train(engine_of(seeded(Mlp)), 1)  # a launcher of one process
        # A script of sbatch is one process, whatever its step will have.
        os.environ.update({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"})
        train(engine_of(seeded(Mlp)), 1)

    @isolated
    def test_no_path_of_their_own_leads_past_it(self):
        """Processes that share an nvme path would be told to take one each."""
        os.environ.update(LAUNCHERS["torchrun"])
        with tempfile.TemporaryDirectory() as folder:
            self.refused(config=config_of("nvme", "nvme", folder))
            self.assertEqual(os.listdir(folder), [])

    @isolated
    def test_a_group_of_torch_is_seen_without_a_launcher(self):
        """As torch.multiprocessing.spawn makes it."""
        with tempfile.TemporaryDirectory() as folder:
            child = os.fork()
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{folder}/meet", rank=int(child != 0), world_size=2
            )
            if not child:
                torch.distributed.barrier()
                os._exit(0)
            error = self.refused()
            torch.distributed.barrier()
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIn("torch.distributed", error.reason)

    @isolated
    def test_half_of_a_launcher_is_named(self):
        os.environ["RANK"] = "1"
        self.assertIn("WORLD_SIZE", self.raised(terrace.ConfigError, engine_of, seeded(Mlp)).reason)

    @isolated
    def test_a_batch_for_several_ranks_says_so(self):
        config = dict(config_of(), train_batch_size=16, train_micro_batch_size_per_gpu=8)
        config["gradient_accumulation_steps"] = 1
        error = self.raised(terrace.ConfigError, engine_of, seeded(Mlp), config)
        self.assertIn("which is 16 on 2 ranks", error.reason)
        self.assertIn("gradient_accumulation_steps 2 keeps the batch", error.advice)
