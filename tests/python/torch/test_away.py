"""Reads of parameters outside of passes are told of once, with the line; writes are refused; passes pay nothing."""

import copy
import io
import linecache
import pickle
import unittest
import warnings

from support_torch import EngineTest, Mlp, batch_of, engine_of, isolated, loss_of, seeded, terrace, torch
from torch import nn
from torch.optim.swa_utils import AveragedModel


def reads():
    """{what: a function of a parameter that is away and of a tensor of its shape}"""
    return {
        "ema.lerp_(p)": lambda p, other: other.lerp_(p, 0.1),
        "ema.mul_().add_(p.data)": lambda p, other: other.mul_(0.9).add_(p.data, alpha=0.1),
        "copy_(p.detach())": lambda p, other: other.copy_(p.detach()),
        "p.norm()": lambda p, other: p.norm(),
        "p.data.square().sum()": lambda p, other: p.data.square().sum(),
        "p.detach().cpu().numpy()": lambda p, other: p.detach().cpu().numpy(),
        "p.detach().float().mean().item()": lambda p, other: p.detach().float().mean().item(),
        "torch.cat": lambda p, other: torch.cat([p.view(-1)]),
        "foreach": lambda p, other: torch._foreach_norm([p]),
        "foreach in place": lambda p, other: torch._foreach_lerp_([other], [p.detach()], 0.1),
        "parameters_to_vector": lambda p, other: nn.utils.parameters_to_vector([p]),
        "p.view(-1)[0].item()": lambda p, other: p.view(-1)[0].item(),
        "p.t() @ p": lambda p, other: p.t() @ p,
        "tolist": lambda p, other: p.tolist(),
        "p.clone()": lambda p, other: p.clone(),
        "p.double()": lambda p, other: p.double(),
        "isfinite": lambda p, other: torch.isfinite(p).all(),
    }


class Away(EngineTest):
    def trained(self, **named):
        engine = engine_of(seeded(Mlp), **named)
        engine.backward(loss_of(engine, batch_of(engine.module, 0)))
        engine.step()
        return engine, engine.module.layers[0].weight

    @isolated
    def test_each_read_is_told_of_once_with_its_line(self):
        for what, read in reads().items():
            with self.subTest(what):
                engine, parameter = self.trained()
                with warnings.catch_warnings(record=True) as told, torch.no_grad():
                    warnings.simplefilter("always")
                    read(parameter, torch.zeros(parameter.shape))
                    read(parameter, torch.zeros(parameter.shape))
                self.assertEqual(len(told), 1, what)
                self.assertIn("layers.0.weight", str(told[0].message))
                self.assertIn("engine.averaged", str(told[0].message))
                self.assertEqual(told[0].filename, __file__)
                line = linecache.getline(__file__, told[0].lineno)
                self.assertIn(f'"{what}"', line)
                engine.close()

    @isolated
    def test_averages_of_torch_and_copies(self):
        engine, _ = self.trained()
        with self.assertWarnsRegex(UserWarning, "outside of a pass"):
            average = AveragedModel(nn.Sequential(engine.module))  # its copy has values
            average.update_parameters(nn.Sequential(engine.module))
            average.update_parameters(nn.Sequential(engine.module))

    @isolated
    def test_the_log_is_told(self):
        told = []
        _, parameter = self.trained(log=lambda level, line: told.append((level, line)))
        parameter.detach().norm()
        self.assertEqual([level for level, line in told if "outside of a pass" in line], ["warning"])
        self.assertIn(f"{__file__}:", told[-1][1])

    @isolated
    def test_what_reads_no_values_is_quiet(self):
        engine, parameter = self.trained()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for one in engine.module.parameters():
                repr((one.shape, one.dtype, one.device, one.numel(), one.requires_grad, one.is_leaf, one.data_ptr()))
                repr(one.grad), one.data, one.detach(), one.to("cpu"), one.data.view(-1), one.size(0), len(one)
                torch.zeros(2).to(one), torch.zeros_like(one), one.new_zeros(3), one.is_contiguous(), one.stride()
                isinstance(one, nn.Parameter), list(one.shape), one.element_size(), torch.is_tensor(one)
            engine.module.state_dict(), engine.optimizer.state_dict(), copy.deepcopy(engine.module)
            engine.module.to("cpu"), engine.zero_grad(), engine.module.zero_grad()
            list(engine.named_values())
            with engine.gathered(engine.module), torch.no_grad():
                self.assertTrue(torch.isfinite(parameter.norm()))
            for step in range(1, 4):
                engine.backward(loss_of(engine, batch_of(engine.module, step)))
                engine.step()
                with torch.no_grad():
                    engine(batch_of(engine.module, step))

    @isolated
    def test_parameters_are_torchs_own_within_passes(self):
        engine, parameter = self.trained()
        kinds = []
        hook = engine.module.layers[0].register_forward_pre_hook(lambda module, *_: kinds.append(type(module.weight)))
        engine(batch_of(engine.module, 1))
        hook.remove()
        self.assertEqual(kinds, [nn.Parameter])
        engine.close(keep_values=True)
        self.assertEqual({type(one) for one in engine.module.parameters()}, {nn.Parameter})
        pickle.dumps(engine.module)
        self.assertTrue(torch.isfinite(parameter).all())

    @isolated
    def test_writes_are_refused_by_name(self):
        engine, parameter = self.trained()
        with torch.no_grad():
            for write in (
                lambda: parameter.data.mul_(2),
                lambda: parameter.copy_(torch.zeros(parameter.shape)),
                lambda: parameter.zero_(),
                lambda: nn.init.normal_(parameter),
                lambda: parameter.detach().__setitem__(0, 1.0),
                lambda: parameter.data.__imul__(2),
            ):
                error = self.raised(terrace.MisuseError, write)
                self.assertEqual(error.subject, "layers.0.weight")
                self.assertIn("gathered", error.advice)
        engine.backward(loss_of(engine, batch_of(engine.module, 1)))
        engine.step()

    @isolated
    def test_copies_and_pickles_of_single_parameters(self):
        engine, parameter = self.trained()
        made = copy.deepcopy(parameter)
        self.assertIs(type(made), nn.Parameter)
        self.assertTrue(torch.equal(made, engine.master(parameter)))
        self.raised(terrace.MisuseError, torch.save, [parameter], io.BytesIO())

    @isolated
    def test_a_trace_is_refused(self):
        engine, _ = self.trained()
        batch = batch_of(engine.module, 1)
        error = self.raised(terrace.MisuseError, torch.jit.trace, engine.module, batch)
        self.assertIn("deepcopy", error.advice)
        traced = torch.jit.trace(copy.deepcopy(engine.module), batch)
        self.assertTrue(torch.equal(traced(batch), engine(batch)))

    @isolated
    def test_values_one_at_a_time(self):
        engine, _ = self.trained()
        state = engine.module.state_dict()
        found = dict(engine.named_values())
        self.assertEqual(set(found), set(state))
        for name, value in found.items():
            self.assertTrue(torch.equal(value, state[name]), name)
        for name, value in engine.named_values(engine.module.layers[1], torch.float32):
            self.assertTrue(torch.equal(value, engine.master(name)))


if __name__ == "__main__":
    unittest.main()
