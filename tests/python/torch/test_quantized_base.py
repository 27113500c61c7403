"""The base of few bits of the program terrace is that of terrace.torch.quantize_base, bit for bit."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from hf_models import AutoConfig, AutoModelForCausalLM
from safetensors.torch import load_file
from support_torch import torch
from terrace.torch import QuantizedLinear
from terrace.torch.quantized import NF4
from torch import nn

WIDTH, HIDDEN = 24, 40  # weights end inside of a block
SHAPE = dict(hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4)
LLAMA = dict(num_key_value_heads=2, vocab_size=256, max_position_embeddings=16, tie_word_embeddings=False)


def hard_values(count, seed):
    """Random blocks of every size, and beside them those whose numbers lie between two codes: of NF4, of 8 bits, zeros and
    denormals."""
    generator = torch.Generator().manual_seed(seed)
    powers = torch.randint(-130, 3, (-(-count // 64),), generator=generator).repeat_interleave(64)
    values = torch.randn(len(powers), generator=generator) * torch.exp2(powers.double()).float()
    nf4 = torch.tensor(NF4)
    middles = torch.cat([(nf4[:-1] + nf4[1:]) / 2, torch.ones(1)])
    halves = (torch.arange(-32, 31) + 0.5) / 127
    values[:16], values[16:64] = middles, 0
    values[64:127], values[127] = halves, 1
    values[128:192] = 0
    values[192:256] = 1e-39 * torch.randn(64, generator=generator)
    return values[:count]


class QuantizedBase(unittest.TestCase):
    def setUp(self):
        self.program = os.environ.get("TERRACE_PROGRAM")
        if not self.program:
            self.skipTest("TERRACE_PROGRAM does not name the program terrace")
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def run_program(self, *words):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_has_the_numbers_of_quantize_base(self):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SHAPE, **LLAMA))
        with torch.no_grad():
            for seed, module in enumerate(model.model.layers.modules()):
                if isinstance(module, nn.Linear):
                    module.weight.copy_(hard_values(module.weight.numel(), seed).view(module.weight.shape))
        model.save_pretrained(self.folder / "base")
        config = {"optimizer": {"type": "SGD", "params": {"lr": 0.0}}, "terrace": {"lora": {"targets": ["q_proj"]}}}
        (self.folder / "ds.json").write_text(json.dumps(config))
        (self.folder / "text.txt").write_text("whatever is here is never learnt from. " * 40)
        for kind in ("nf4", "int8"):
            with self.subTest(kind):
                run = ["--config", "ds.json", "--model", "base", "--data", "text.txt", "--steps", 1, "--save", kind]
                self.run_program("train", *run, "--quantize-base", kind)
                self.run_program("export", kind, "--out", kind + "-out", "--dtype", "fp32")
                found = load_file(self.folder / (kind + "-out") / "model.safetensors")
                for name, module in model.named_modules():
                    if not isinstance(module, nn.Linear):
                        continue
                    expected = module.weight.detach()
                    if name != "lm_head":
                        expected = QuantizedLinear.of(module, kind).dequantized()
                        self.assertFalse(torch.equal(expected, module.weight))
                    self.assertTrue(torch.equal(found[name + ".weight"], expected), name)


if __name__ == "__main__":
    unittest.main()
