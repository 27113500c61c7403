"""Processes that each train a part of a model: the numbers are those of the whole, whatever lies where, however many
processes share a part."""

import itertools
import os
import tempfile
import unittest

from ranks_torch import RanksTest, config_of, engine_of, masters, seeded, terrace, together
from support_torch import isolated, torch
from tensor_layers import Copy, Sum, shard
from torch import nn
from torch.nn import functional as F

MICRO_BATCHES, STEPS, WIDTH = 4, 3, 64


# --- Towers, which have nothing to do with each other: only the norm is of both ---


class Towers(nn.Module):
    """The numbers of a tower are its own, whichever others are there. No tile of a store has parts of two of them."""

    def __init__(self, *chosen):
        super().__init__()
        for tower in range(2):
            layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)))
            if tower in chosen:
                self.add_module(f"tower{tower}", layers)
        for one in self.parameters():
            one.tensor_model_parallel = True  # no other part has it

    def forward(self, x):
        return sum(tower(x).float().square().mean() for tower in self.children())


def batch_of(step, number, dtype):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + number)).to(dtype)


def train(engine, data_rank, infinite_step):
    """[(norm, whether it was applied)]; micro-batch k of N processes is number k N + r."""
    told, dtype = [], next(engine.module.parameters()).dtype
    for step in range(STEPS):
        for k in range(engine.gradient_accumulation_steps()):
            number = k * engine.world_size + data_rank
            loss = engine(batch_of(step, number, dtype))
            is_spoilt = step == infinite_step and number == 1 and hasattr(engine.module, "tower1")
            engine.backward(loss * float("inf") if is_spoilt else loss)
            engine.step()
        told.append((engine.get_global_grad_norm(), engine.was_step_applied()))
    return told


# (parameters, states, update, precision, clipping, optimizer, moments, the step with an infinite gradient)
CASES = [
    ("cpu", "cpu", "after_backward", "fp32", 0.01, "AdamW", "fp32", None),
    ("nvme", "nvme", "next_forward", "bf16", 0.01, "AdamW", "fp32", 1),
    ("device", "nvme", "after_backward", "fp16", 0.01, "Lion", "fp32", 1),
    ("cpu", "nvme", "after_backward", "fp32", 0.0, "Adagrad", "fp32", None),
    ("nvme", "cpu", "during_backward", "bf16", 0.01, "SGD", "fp32", 1),
]


def trained(case, parts, data):
    parameters, states, update, precision, clip, optimizer, moments, infinite_step = case

    def body(rank):
        with tempfile.TemporaryDirectory() as folder:
            named = {"optimizer": optimizer, "update": update, "state_type": moments}
            config = config_of(parameters, states, folder, MICRO_BATCHES // data, clip, precision, **named)
            if precision == "fp16":
                config["fp16"] = {"enabled": True, "initial_scale_power": 8}
            chosen = (0, 1) if parts == 1 else (rank % parts,)
            more = {"model_parallel_size": parts} if parts > 1 else {}
            engine = engine_of(seeded(Towers, *chosen), config, persistence_threshold=0, **more)
            told = train(engine, rank // parts, infinite_step)
            found = masters(engine)
            engine.close()
        return told, found

    return body


class PartsTest(RanksTest):
    def test_towers_in_parts_have_the_numbers_of_both_in_one_process(self):
        for case in CASES:
            (told, values), *_ = self.on_ranks(1, trained(case, 1, 1))
            self.assertEqual([applied for _, applied in told], [step != case[-1] for step in range(STEPS)])
            for data in (1, 2):
                with self.subTest(case=case, data=data):
                    ends = self.on_ranks(2 * data, trained(case, 2, data))
                    found = {}
                    for told_here, values_here in ends:
                        self.assertEqual(repr(told_here), repr(told))
                        for name, value in values_here.items():
                            self.assertEqual(found.setdefault(name, value), value)
                    self.assertEqual(found, values)

    def test_a_part_that_fails_is_named_on_all(self):
        def body(rank):
            engine = engine_of(seeded(Towers, rank % 2), config_of(accumulation=1), model_parallel_size=2)
            if rank == 3:
                raise RuntimeError("out of luck")
            train(engine, rank // 2, None)

        ends = together(4, body)
        self.assertIn("out of luck", ends[3].text)
        for rank in range(3):
            said = ends[rank].text or str(ends[rank].status)
            self.assertTrue(ends[rank].status or "rank 3" in said or "rank 1 of 2" in said, said)


# --- Tensor parallelism, as Megatron has it ---


class Net(nn.Module):
    """Layers whose columns and rows are divided, and norms that all processes have."""

    def __init__(self, place=0, count=1, group=None):
        super().__init__()
        self.group = group
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])
        self.columns, self.rows = nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            up, down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
            up.weight, down.weight = shard(up.weight, 0, place, count), shard(down.weight, 1, place, count)
            self.columns.append(up)
            self.rows.append(down)

    def forward(self, x):
        for norm, column, row in zip(self.norms, self.columns, self.rows):
            y = F.gelu(column(Copy.apply(norm(x), self.group)))
            x = x + Sum.apply(row(y), self.group)
        return x.float().square().mean()


def tensor_parallel(tensor, data, parameters, states, precision="fp32"):
    """What a process has of a training: norms, the digests of its masters, and the masters that a process has whole."""

    def body(rank):
        with tempfile.TemporaryDirectory() as folder:
            group = None
            if tensor > 1:
                meet = "file://" + os.path.join(os.path.dirname(os.environ["TERRACE_MEET"]), "torch")
                torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=tensor * data)
                for first in range(0, tensor * data, tensor):
                    made = torch.distributed.new_group(list(range(first, first + tensor)))
                    group = made if first <= rank < first + tensor else group
            config = config_of(parameters, states, folder, MICRO_BATCHES // data, 0.1, precision)
            model = seeded(Net, rank % tensor, tensor, group)
            more = {"model_parallel_size": tensor} if tensor > 1 else {}
            engine = engine_of(model, config, persistence_threshold=0, **more)
            norms = [norm for norm, _ in train(engine, rank // tensor, None)]
            whole = {one.name: engine.master(one.parameter).clone() for one in engine._tracked}
            found = masters(engine)
            self_saved(engine, rank % tensor, folder, found)
            engine.close()
            if tensor > 1:
                torch.distributed.destroy_process_group()
        return norms, found, {name: value.tolist() for name, value in whole.items() if "norm" in name}

    return body


class TensorParallelTest(RanksTest):
    def test_it_has_the_numbers_of_one_process_to_rounding(self):
        (norms, _, values), *_ = self.on_ranks(1, tensor_parallel(1, 1, "cpu", "cpu"))
        ends = self.on_ranks(2, tensor_parallel(2, 1, "cpu", "cpu"))
        for found, _, values_here in ends:
            for norm, alone in zip(found, norms):
                self.assertLessEqual(abs(norm - alone), 1e-5 * alone)
            for name, value in values_here.items():
                difference = torch.tensor(value) - torch.tensor(values[name])
                self.assertLessEqual(difference.abs().max().item(), 2e-4, name)

    def test_placements_and_data_ranks_change_no_bit(self):
        of_first = None
        for data, (parameters, states) in itertools.product((1, 2), (("cpu", "cpu"), ("nvme", "nvme"))):
            with self.subTest(data=data, parameters=parameters):
                ends = self.on_ranks(2 * data, tensor_parallel(2, data, parameters, states, "bf16"))
                self.assertEqual(len({repr(norms) for norms, _, _ in ends}), 1)
                found = [ends[0][0], ends[0][1], ends[1][1]]
                of_first = of_first or found
                self.assertEqual(found, of_first)
                # What all processes have, each updates alike.
                for name, value in ends[0][1].items():
                    if "norm" in name:
                        self.assertEqual({values[name] for _, values, _ in ends}, {value})


# --- The same by DTensors ---


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return (x + self.down(F.gelu(self.up(self.norm(x))))).float().square().mean()


def spread(tensor, data, place, precision="fp32"):
    """What a process has of a training: norms, digests of its masters, and its state dict as whole tensors."""

    def body(rank):
        with tempfile.TemporaryDirectory() as folder:
            model = seeded(Plain)
            if tensor > 1:
                _parallelize(model, rank, tensor, data)
            config = config_of(place, place, folder, MICRO_BATCHES // data, 0.1, precision)
            more = {"model_parallel_size": tensor} if tensor > 1 else {}
            engine = engine_of(model, config, persistence_threshold=0, **more)
            norms = [norm for norm, _ in train(engine, rank // tensor, None)]
            state = model.state_dict()
            model.load_state_dict({name: value * 1 for name, value in state.items()})
            found = masters(engine)
            self_saved(engine, rank % tensor, folder, found)
            state = {name: getattr(value, "full_tensor", lambda value=value: value)() for name, value in state.items()}
            engine.close()
            if tensor > 1:
                torch.distributed.destroy_process_group()
        return norms, found, {name: value.tolist() for name, value in state.items()}

    return body


def self_saved(engine, part, folder, found):
    """A checkpoint of this part brings back its masters."""
    shared = os.path.dirname(os.environ["TERRACE_MEET"]) if engine.parts.everybody else folder
    folder = os.path.join(shared, f"saved by part {part}")
    engine.save_checkpoint(folder, "here")
    for one in engine._tracked:
        engine._values.write(one, torch.zeros(one.shape))
    assert masters(engine) != found
    engine.load_checkpoint(folder, "here")
    assert masters(engine) == found


def _parallelize(model, rank, tensor, data):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    meet = "file://" + os.path.join(os.path.dirname(os.environ["TERRACE_MEET"]), "torch")
    torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=tensor * data)
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("data", "tensor"))["tensor"]
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


class SpreadTest(RanksTest):
    def test_dtensors_have_the_numbers_of_one_process_to_rounding(self):
        (norms, _, values), *_ = self.on_ranks(1, spread(1, 1, "cpu"))
        of_first = None
        for data, place in itertools.product((1, 2), ("cpu", "nvme")):
            ends = self.on_ranks(2 * data, spread(2, data, place))
            for found, _, values_here in ends:
                for norm, alone in zip(found, norms):
                    self.assertLessEqual(abs(norm - alone), 1e-5 * alone)
                for name, value in values_here.items():
                    difference = torch.tensor(value) - torch.tensor(values[name])
                    self.assertLessEqual(difference.abs().max().item(), 2e-4, name)
            bits = [ends[0][0], ends[0][1], ends[1][1]]
            of_first = of_first or bits
            self.assertEqual(bits, of_first, (data, place))


class RefusalsTest(RanksTest):
    @isolated
    def test_alone_there_is_nothing_to_divide(self):
        model = seeded(Towers, 0)
        for size in (2, 0, True, "2"):
            error = self.raised(terrace.ConfigError, engine_of, model, model_parallel_size=size)
            self.assertEqual(error.subject, "model_parallel_size")
        error = self.raised(terrace.ConfigError, engine_of, model, mesh_param=(2, 2))
        self.assertEqual(error.subject, "mesh_param")
        engine_of(model, model_parallel_size=1).close()

    def test_what_all_have_begins_alike(self):
        def body(rank):
            model = seeded(Net, rank, 2)
            with torch.no_grad():
                model.norms[1].weight.mul_(rank + 1)
            engine_of(model, model_parallel_size=2)

        for end in together(2, body):
            self.assertIn("values of norms.1.weight", str(end.error) + end.text)
            self.assertIn("tensor_model_parallel", str(end.error) + end.text)

    def test_a_shard_is_no_matrix_of_muon(self):
        def body(rank):
            engine_of(seeded(Net, rank, 2), config_of(optimizer="Muon"), model_parallel_size=2)

        for end in together(2, body):
            self.assertIn("a step of Muon is made of the whole", str(end.error) + end.text)

    def test_commits_of_parts_are_not_resumed(self):
        def body(rank):
            with tempfile.TemporaryDirectory() as folder:
                config = config_of("nvme", "nvme", folder)
                engine_of(seeded(Towers, rank), config, model_parallel_size=2, resume="auto")

        for end in together(2, body):
            self.assertIn("save a checkpoint of all parts", str(end.error) + end.text)


if __name__ == "__main__":
    unittest.main()
