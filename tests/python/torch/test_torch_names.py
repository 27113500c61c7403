"""What shadows torch's has torch's names: programs, and torch itself, give arguments by name."""

import inspect
import unittest

from support_torch import EngineTest, Mlp, batch_of, engine_of, isolated, loss_of, masters, seeded, torch
from terrace.torch import OffloadAdagrad, OffloadAdam, OffloadAdamW, OffloadLion, OffloadSGD
from terrace.torch.engine import Engine
from terrace.torch.engine.optimizer import EngineOptimizer
from terrace.torch.engine.schedule import EngineSchedule

_SHADOWED = (
    (Engine, torch.nn.Module),
    (EngineOptimizer, torch.optim.Optimizer),
    (EngineSchedule, torch.optim.lr_scheduler.LRScheduler),
    (OffloadAdamW, torch.optim.AdamW),
    (OffloadAdam, torch.optim.Adam),
    (OffloadAdagrad, torch.optim.Adagrad),
    (OffloadSGD, torch.optim.SGD),
    (OffloadLion, torch.optim.Optimizer),
)
_ANY = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def shadowing(ours, theirs):
    """(name, our method, torch's) of the methods that Terrace has in the place of torch's."""
    for name in dir(ours):
        method, other = getattr(ours, name), getattr(theirs, name, None)
        if inspect.isfunction(method) and method.__module__.startswith("terrace") and callable(other):
            if not name.startswith("__") or name == "__setstate__":
                yield name, method, other


class NamesOfTorch(EngineTest):
    def test_arguments_have_the_names_of_torch(self):
        count = 0
        for ours, theirs in _SHADOWED:
            for name, method, other in shadowing(ours, theirs):
                takes = inspect.signature(method).parameters
                if any(one.kind in _ANY for one in takes.values()):
                    continue
                wanted = [one.name for one in inspect.signature(other).parameters.values() if one.kind not in _ANY]
                count += 1
                self.assertEqual(list(takes)[: len(wanted)], wanted, f"{ours.__name__}.{name}")
        self.assertGreater(count, 30)

    @isolated
    def test_distributed_checkpoints_of_torch(self):
        """get_state_dict and set_state_dict call load_state_dict(state_dict=...)."""
        from torch.distributed.checkpoint import state_dict

        engines = [engine_of(seeded(Mlp)) for _ in range(2)]
        for step in range(2):
            engines[0].backward(loss_of(engines[0], batch_of(engines[0].module, step)))
            engines[0].step()
        weights, states = state_dict.get_state_dict(engines[0].module, engines[0].optimizer)
        state_dict.set_state_dict(
            engines[1].module, engines[1].optimizer, model_state_dict=weights, optim_state_dict=states
        )
        for engine in engines:
            engine.backward(loss_of(engine, batch_of(engine.module, 2)))
            engine.step()
        self.assertEqual(masters(engines[1]), masters(engines[0]))

    @isolated
    def test_a_schedule_goes_to_an_update(self):
        config = {
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-3}},
        }
        schedule = engine_of(seeded(Mlp), config).lr_scheduler
        for _ in range(4):
            schedule.step()
        expected = schedule.get_last_lr()
        schedule.step(epoch=9)
        self.assertNotEqual(schedule.get_last_lr(), expected)
        schedule.step(epoch=4)
        self.assertEqual(schedule.get_last_lr(), expected)


if __name__ == "__main__":
    unittest.main()
