"""Models of transformers, and adapters of peft."""

import tempfile
import unittest

from hf_models import AutoModelForCausalLM, bert, gpt2, llama, loss_of, mixtral, t5, vit
from support_torch import EngineTest, config_of, engine_of, isolated, seeded, torch


class Transformers(EngineTest):
    def check(self, make, prepare=lambda model: None):
        model, plain = seeded(make), seeded(make)
        for one in (model, plain):
            prepare(one)
            one.train()
        engine = engine_of(model, config_of(clip=0.0, strict=True))
        optimizer = torch.optim.AdamW(
            [one for one in plain.parameters() if one.requires_grad], lr=1e-2, weight_decay=0.1, eps=1e-3
        )
        for step in range(4):
            loss, expected = loss_of(model, step), loss_of(plain, step)
            self.assertLessEqual(abs(loss.item() - expected.item()), 2e-6 * abs(expected.item()))
            loss.backward()
            expected.backward()
            engine.optimizer.step()
            optimizer.step()
            optimizer.zero_grad()
        for (name, value), (_, other) in zip(model.state_dict().items(), plain.state_dict().items()):
            self.assertLessEqual((value - other).abs().max().item(), 1e-6, name)
        return engine, plain

    @isolated
    def test_seven_models(self):
        for make in (gpt2, llama, lambda: llama(tied=True), mixtral, bert, t5, vit):
            self.check(make)

    @isolated
    def test_gradient_checkpointing_and_generation(self):
        for reentrant in (False, True):

            def prepare(model):
                model.gradient_checkpointing_enable({"use_reentrant": reentrant})

            engine, plain = self.check(llama, prepare)
            prompt = torch.tensor([[5, 6, 7]])
            plain.load_state_dict(engine.state_dict())
            for model in (engine.module, plain):
                model.eval()
            made, expected = (
                model.generate(prompt, max_new_tokens=6, do_sample=False) for model in (engine.module, plain)
            )
            self.assertEqual(made.tolist(), expected.tolist())

    @isolated
    def test_saved_weights_are_loaded_bit_for_bit(self):
        engine, _ = self.check(lambda: llama(tied=True))
        with tempfile.TemporaryDirectory() as folder:
            for save in (
                lambda: engine.save_safetensors(folder, shard_bytes=20 << 10),
                lambda: engine.module.save_pretrained(folder),
            ):
                save()
                loaded = AutoModelForCausalLM.from_pretrained(folder)
                for one in engine._tracked:
                    self.assertTrue(torch.equal(loaded.get_parameter(one.name), engine.master(one.name)), one.name)

    @isolated
    def test_adapters(self):
        import peft

        def make():
            torch.manual_seed(7)
            return peft.get_peft_model(
                llama(),
                peft.LoraConfig(
                    r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM"
                ),
            )

        engine, plain = self.check(make)
        self.assertEqual(
            engine.store.plan.trainable_count, sum(one.numel() for one in plain.parameters() if one.requires_grad)
        )
        for strict_frozen in engine._tracked:
            self.assertEqual(strict_frozen.is_trainable, "lora" in strict_frozen.name)
        with tempfile.TemporaryDirectory() as folder:
            engine.module.save_pretrained(folder)
            loaded = peft.PeftModel.from_pretrained(seeded(llama), folder)
            expected = peft.get_peft_model_state_dict(engine.module)
            for name, value in peft.get_peft_model_state_dict(loaded).items():
                self.assertTrue(torch.equal(value, expected[name]), name)


if __name__ == "__main__":
    unittest.main()
