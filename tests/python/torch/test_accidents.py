"""What goes wrong in a training is an error of four parts, or the program's own, and the next step is right."""

import gc
import io
import os
import pickle
import signal
import tempfile
import threading
import unittest
import weakref

from support_torch import (
    EngineTest,
    Gpt,
    Mlp,
    batch_of,
    config_of,
    engine_of,
    isolated,
    loss_of,
    masters,
    nn,
    seeded,
    terrace,
    torch,
    train,
)


class Trouble(Mlp):
    """Raises in forward or in backward where it is asked to."""

    forward_raises = backward_raises = None

    def forward(self, x):
        out = super().forward(x)
        if self.forward_raises is not None:
            raise self.forward_raises
        return _Passed.apply(out, self)


class TroubleInside(Trouble):
    """The same within a unit."""

    def __init__(self):
        super().__init__()
        self.layers[1].register_forward_hook(self.maybe_raise)

    def maybe_raise(self, module, arguments, output):
        if self.backward_raises is not None:
            output.register_hook(self.raise_now)

    def raise_now(self, gradient):
        if self.backward_raises is not None:
            raise self.backward_raises


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(context, x, model):
        context.model = model
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        if context.model.backward_raises is not None and not isinstance(context.model, TroubleInside):
            raise context.model.backward_raises
        return gradient, None


class Accidents(EngineTest):
    def after(self, engine, fresh=None):
        """Trains on; the result is that of an engine to which nothing has happened."""
        told = train(engine, 3)
        other = engine_of(seeded(fresh or type(engine.module)), engine.config_source)
        self.assertEqual(told, train(other, 3))
        self.assertEqual(masters(engine), masters(other))

    def engine(self, model=Mlp, **options):
        config = config_of(**options)
        engine = engine_of(seeded(model), config)
        engine.config_source = config
        return engine

    def forward(self, engine, step=9):
        return loss_of(engine.module, batch_of(engine.module, step))

    @isolated
    def test_exceptions_in_forward(self):
        for strict in (False, True):
            for exception in (ValueError("mine"), KeyboardInterrupt()):
                engine = self.engine(Trouble, strict=strict)
                engine.module.forward_raises = exception
                with self.assertRaises(type(exception)):
                    self.forward(engine)
                engine.module.forward_raises = None
                self.after(engine)

    @isolated
    def test_exceptions_in_backward(self):
        for model in (Trouble, TroubleInside):
            for exception in (ValueError("mine"), KeyboardInterrupt()):
                for gives_up in (False, True):
                    engine = self.engine(model)
                    engine.module.backward_raises = exception
                    with self.assertRaises(type(exception)):
                        self.forward(engine).backward()
                    engine.module.backward_raises = None
                    if gives_up:
                        engine.optimizer.zero_grad()
                    self.after(engine)

    @isolated
    def test_a_spoilt_step_is_not_updated_silently(self):
        engine = self.engine(TroubleInside, accumulation=2)
        self.forward(engine).backward()
        engine.module.backward_raises = ValueError("mine")
        with self.assertRaises(ValueError):
            self.forward(engine).backward()
        engine.module.backward_raises = None
        self.raised(terrace.MisuseError, engine.optimizer.step)
        self.raised(terrace.MisuseError, self.forward, engine)
        engine.optimizer.zero_grad()
        self.after(engine)

    @isolated
    def test_interrupts_in_hooks(self):
        """SIGINT at every place of a step where Python looks for signals, such as inside the hooks."""
        expected = []
        for updates in range(2):
            engine = self.engine()
            for _ in range(updates):
                self.forward(engine).backward()
                engine.optimizer.step()
            expected.append((train(engine, 2), masters(engine)))
        seen = []
        for place in range(0, 4000, 37):
            engine = self.engine()
            fired = self.interrupted_step(engine, place)
            engine.optimizer.zero_grad()
            seen.append(engine.global_steps)
            self.assertEqual((train(engine, 2), masters(engine)), expected[seen[-1]], place)
            engine.close()
            if not fired:
                break
        self.assertGreater(len(seen), 30)
        self.assertEqual(seen[-1], 1)

    def interrupted_step(self, engine, place):
        """Raises as Ctrl-C does, at the given line of the package's own code."""
        import sys

        seen = [0]
        folder = os.path.dirname(terrace.torch.__file__)

        def trace(frame, event, argument):
            if event == "call":
                return trace if frame.f_code.co_filename.startswith(folder) else None
            if event == "line":
                seen[0] += 1
                if seen[0] == place + 1:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            self.forward(engine).backward()
            engine.optimizer.step()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return seen[0] > place

    @isolated
    def test_second_and_double_backward(self):
        engine = self.engine()
        loss = self.forward(engine)
        loss.backward(retain_graph=True)
        self.assertIn("second backward", str(self.raised(terrace.MisuseError, loss.backward)))
        engine.optimizer.zero_grad()
        self.assertIn(
            "create_graph", str(self.raised(terrace.MisuseError, self.forward(engine).backward, create_graph=True))
        )
        engine.optimizer.zero_grad()
        x = batch_of(engine.module, 1).requires_grad_()
        loss = loss_of(engine.module, x)
        self.raised(terrace.MisuseError, torch.autograd.grad, loss, x, create_graph=True)
        engine.optimizer.zero_grad()
        old = self.forward(engine)
        train(engine, 1)
        self.assertIn("before the last update", str(self.raised(terrace.MisuseError, old.backward)))
        engine = self.engine()
        self.after(engine)

    @isolated
    def test_a_gradient_of_the_inputs_is_no_backward_pass_of_the_parameters(self):
        engine = self.engine()
        x = batch_of(engine.module, 1).requires_grad_()
        plain = seeded(Mlp)
        (gradient,) = torch.autograd.grad(loss_of(engine.module, x), x)
        (expected,) = torch.autograd.grad(loss_of(plain, x), x)
        self.assertTrue(torch.equal(gradient, expected))
        self.after(engine)

    @isolated
    def test_clipping_by_torch_is_no_silent_zero(self):
        engine = self.engine()
        self.forward(engine).backward()
        for clip in (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_):
            error = self.raised(terrace.MisuseError, clip, engine.module.parameters(), 1.0)
            self.assertIn("gradient_clipping", error.advice)
        self.raised(terrace.MisuseError, lambda: next(engine.module.parameters()).grad.norm())
        self.raised(terrace.MisuseError, lambda: next(engine.module.parameters()).grad.mul_(2))
        engine.optimizer.zero_grad()
        self.after(engine)

    @isolated
    def test_clipping_by_the_engine(self):
        told = []
        for by_call in (False, True):
            engine = engine_of(seeded(Mlp), config_of(clip=0.0 if by_call else 0.5))
            norms = []
            for step in range(3):
                self.forward(engine, step).backward()
                norm = engine.clip_grad_norm_(0.5) if by_call else None
                engine.optimizer.step()
                norms.append(engine.get_global_grad_norm())
                if by_call:
                    self.assertEqual(norm.item(), torch.tensor(norms[-1]).item())
            told.append((norms, masters(engine)))
        self.assertEqual(*told)

    @isolated
    def test_parameters_outside_of_passes(self):
        engine = self.engine()
        weight = engine.module.first.weight
        self.assertEqual(weight.shape, (96, 32))
        self.assertTrue(weight.isnan().all())
        self.assertIn("Parameter", repr(weight))
        self.assertIn("Linear", repr(engine.module))
        with torch.no_grad(), self.assertRaises(terrace.MisuseError):
            weight.add_(1)
        for write in (lambda: weight.data.fill_(1), lambda: nn.init.zeros_(weight)):
            self.assertIn("gathered", self.raised(terrace.MisuseError, write).advice)
        weight.data = torch.ones_like(weight)
        self.assertIn("gathered", self.raised(terrace.MisuseError, self.forward, engine).advice)
        self.after(engine)

    @isolated
    def test_small_parameters_may_be_written(self):
        engines = [self.engine() for _ in range(2)]
        with torch.no_grad():
            engines[0].module.norm.bias.fill_(0.25)
        engines[1].module.norm.bias.data.fill_(0.25)
        plain = seeded(Mlp)
        plain.norm.bias.data.fill_(0.25)
        other = engine_of(plain)
        told = train(other, 3)
        for engine in engines:
            self.assertEqual((train(engine, 3), masters(engine)), (told, masters(other)))
        for engine, bias in ((engines[0], engines[0].module.norm.bias), (other, other.module.norm.bias)):
            bias.data = torch.full((96,), 0.125) if engine is other else bias.data.fill_(0.125)
        self.assertEqual((train(engines[0], 3), masters(engines[0])), (train(other, 3), masters(other)))
        engines[1].optimizer.zero_grad()
        engines[1].module.half()
        self.raised(terrace.MisuseError, self.forward, engines[1])
        self.forward(engines[0]).backward()
        engines[0].module.norm.bias.data.fill_(0.5)
        self.raised(terrace.MisuseError, engines[0].optimizer.step)

    @isolated
    def test_what_cannot_be_trained_is_refused(self):
        def model(change):
            made = seeded(Mlp)
            change(made)
            return made

        def share(made):
            made.last.weight = nn.Parameter(made.first.weight.detach().view(-1)[: 8 * 96].view(8, 96))

        changes = {
            "complex": lambda made: setattr(made, "odd", nn.Parameter(torch.zeros(4, dtype=torch.complex64))),
            "sparse": lambda made: setattr(made, "odd", nn.Parameter(torch.eye(4).to_sparse())),
            "float64": lambda made: setattr(made, "odd", nn.Parameter(torch.zeros(4, dtype=torch.float64))),
            "meta": lambda made: setattr(made, "odd", nn.Parameter(torch.zeros(4, device="meta"))),
            "storage": share,
        }
        for word, change in changes.items():
            self.assertIn(word, str(self.raised(terrace.ConfigError, engine_of, model(change))))
        quantised = nn.Parameter(torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8), requires_grad=False)
        self.assertIn(
            "quantised",
            str(self.raised(terrace.ConfigError, engine_of, model(lambda m: setattr(m, "odd", quantised)))),
        )
        self.raised(terrace.ConfigError, engine_of, nn.DataParallel(Mlp()))
        self.raised(terrace.ConfigError, engine_of, "no model")
        self.raised(terrace.ConfigError, engine_of, Mlp().requires_grad_(False))
        self.raised(terrace.ConfigError, engine_of, Mlp(), units="Blok")
        self.raised(terrace.ConfigError, engine_of, Mlp(), optimizer=lambda p: torch.optim.Adamax(p))
        self.raised(terrace.ConfigError, engine_of, Mlp(), optimizer=lambda p: torch.optim.AdamW(p, amsgrad=True))
        self.raised(terrace.ConfigError, engine_of, Mlp(), device="meta")
        refused = seeded(Mlp)
        with self.assertRaises(ZeroDivisionError):
            engine_of(refused, lr_scheduler=lambda optimizer: 1 / 0)
        with self.assertRaises(ValueError):
            twice = [refused.last.weight]
            engine_of(refused, model_parameters=[{"params": twice}, {"params": twice}])
        self.raised(terrace.CapacityError, engine_of, refused, config_of(host_memory=1))
        for (name, value), (_, other) in zip(refused.state_dict().items(), seeded(Mlp).state_dict().items()):
            self.assertTrue(torch.equal(value, other), name)

    @isolated
    def test_sparse_gradients(self):
        class Words(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(64, 16, sparse=True)

            def forward(self, x):
                return self.table(x)

        engine = engine_of(Words())
        self.assertIn("sparse", str(self.raised(terrace.MisuseError, engine(torch.arange(4)).sum().backward)))

    @isolated
    def test_what_is_dropped_is_freed(self):
        """As in a notebook, where the cell that makes an engine runs again."""
        threads = len(os.listdir("/proc/self/task"))
        for _ in range(3):
            engine = self.engine()
            train(engine, 1)
            store = weakref.ref(engine.store)
            del engine
            gc.collect()
            self.assertIsNone(store())
        self.assertLessEqual(len(os.listdir("/proc/self/task")), threads + 8)

    @isolated
    def test_an_fp16_loss_that_was_not_scaled(self):
        config = dict(config_of(), fp16={"enabled": True, "loss_scale": 1024})
        engine, other = engine_of(seeded(Mlp), config), engine_of(seeded(Mlp), config)
        error = self.raised(terrace.MisuseError, self.forward(engine).backward)
        self.assertIn("engine.scale", error.advice)
        for _ in range(2):
            engine.scale(self.forward(engine)).backward()
            engine.step()
            other.backward(self.forward(other))
            other.step()
            self.raised(terrace.MisuseError, self.forward(engine).backward)
        self.assertEqual(engine.get_global_grad_norm(), other.get_global_grad_norm())
        self.assertEqual(masters(engine), masters(other))

    @isolated
    def test_a_model_has_one_engine_and_one_process(self):
        engine = self.engine()
        self.raised(terrace.MisuseError, engine_of, engine.module)
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.raised(terrace.MisuseError, torch.nn.parallel.DistributedDataParallel, engine.module)
        for pickled in (
            lambda: pickle.dumps(engine.module),
            lambda: torch.save(engine.module, io.BytesIO()),
            lambda: pickle.dumps(engine),
            lambda: pickle.dumps(engine.optimizer),
        ):
            self.raised(terrace.MisuseError, pickled)
        self.after(engine)
        engine.close()
        self.raised(terrace.MisuseError, engine.step)
        self.raised(terrace.MisuseError, engine.save_safetensors, "nowhere")
        self.after_close(engine)

    def after_close(self, engine):
        again = engine_of(seeded(Mlp))
        again.close(keep_values=True)
        for (name, value), (_, other) in zip(again.module.state_dict().items(), seeded(Mlp).state_dict().items()):
            self.assertTrue(torch.equal(value, other), name)
        pickle.dumps(again.module)
        self.assertEqual(set(vars(again.module)), set(vars(seeded(Mlp))))

    @isolated
    def test_a_model_that_changes(self):
        for change in (
            lambda model: setattr(model.layers[1], "weight", nn.Parameter(torch.zeros(96, 96))),
            lambda model: model.layers.append(nn.Linear(96, 96)),
            lambda model: model.layers.__setitem__(0, nn.Linear(96, 96)),
            lambda model: model.register_parameter("more", nn.Parameter(torch.zeros(3))),
        ):
            engine = self.engine()
            train(engine, 1)
            change(engine.module)
            self.raised(terrace.MisuseError, self.forward, engine)
        for thawed in ("weight", "bias"):  # which stays in torch's memory
            model = seeded(Mlp)
            model.last.requires_grad_(False)
            engine = engine_of(model)
            getattr(model.last, thawed).requires_grad_(True)
            self.raised(terrace.MisuseError, self.forward, engine)

    @isolated
    def test_a_layer_may_be_frozen_between_steps(self):
        engine, plain = self.engine(), seeded(Mlp)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
        from support_torch import train_plain

        told, expected = [], []
        for step, frozen in enumerate((False, True, True, False)):
            for model in (engine.module, plain):
                model.layers[1].requires_grad_(not frozen)
            told += train(engine, 1, first=step)
            expected += train_plain(plain, 1, first=step, optimizer=optimizer)
        self.assert_near_plain(told, expected)

    @isolated
    def test_fork(self):
        engine = self.engine()
        train(engine, 1)
        child = os.fork()
        if not child:
            try:
                self.forward(engine)
            except terrace.MisuseError:
                os._exit(7)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        train(engine, 1, first=1)

    @isolated
    def test_backward_and_update_on_another_thread(self):
        engine, other = self.engine(Gpt), self.engine(Gpt)
        told = train(other, 3)
        result = []
        for step in range(3):
            loss = self.forward(engine, step)
            for call in (loss.backward, engine.optimizer.step):
                thread = threading.Thread(target=call)
                thread.start()
                thread.join()
            result.append(([loss.item()], engine.get_global_grad_norm()))
        self.assertEqual((result, masters(engine)), (told, masters(other)))

    @isolated
    def test_too_small_a_budget(self):
        for option, least in (("device_memory", "least_device_bytes"), ("host_memory", "least_bytes")):
            error = self.raised(terrace.CapacityError, self.engine, **{option: 1 << 12})
            self.assertGreater(getattr(error, least), 1 << 12)
            self.assertIn(str(getattr(error, least)), str(error))
            self.assertIn(f"terrace.{option}", error.advice)
            self.assertIsNone(error.__context__)
            self.engine(**{option: getattr(error, least)})

    @isolated
    def test_not_finite(self):
        said = []
        engine = engine_of(seeded(Mlp), config_of(), log=lambda level, line: said.append(line))
        before = masters(engine)
        (self.forward(engine) * float("inf")).backward()
        engine.step()
        self.assertFalse(engine.was_step_applied())
        self.assertEqual(masters(engine), before)
        self.assertTrue(any("infinite or NaN" in line for line in said))
        engine.config_source = None
        self.after(engine)

    @isolated
    def test_signals_end_a_process_on_strict_devices_alone(self):
        """A stray view of a weight: outside of strict mode it can be read, in it the process ends and says why."""
        for strict in (False, True):
            said = tempfile.TemporaryFile()
            child = os.fork()
            if not child:
                os.dup2(said.fileno(), 2)
                engine = self.engine(strict=strict)
                with torch.no_grad():
                    kept = []
                    engine.module.first.register_forward_hook(lambda module, a, b: kept.append(module.weight.data.t()))
                    engine.module.first._forward_hooks.move_to_end(
                        next(reversed(engine.module.first._forward_hooks)), last=False
                    )
                    engine(batch_of(engine.module, 0))
                kept[0].sum().item()
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            self.assertEqual(os.waitstatus_to_exitcode(status), -signal.SIGSEGV if strict else 0)
            said.seek(0)
            text = said.read().decode()
            for part in ("first.weight", "last lease: last/forward", "test_accidents.py"):
                self.assertEqual(part in text, strict, text)


if __name__ == "__main__":
    unittest.main()
