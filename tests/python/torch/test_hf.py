"""Models and the Trainer of transformers, and adapters of peft. Models are made from configurations: nothing is
fetched."""

import tempfile
import unittest

from support_torch import EngineTest, config_of, engine_of, isolated, masters, seeded, terrace, torch

try:
    import transformers
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments

    import terrace.hf
except ImportError:
    raise unittest.SkipTest("transformers is not installed") from None

SMALL = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    vocab_size=64,
    max_position_embeddings=32,
)
ROUND = dict(num_key_value_heads=2, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def gpt2():
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            "gpt2",
            n_embd=32,
            n_layer=2,
            n_head=4,
            vocab_size=64,
            n_positions=32,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def llama(tied=False):
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", **SMALL, **dict(ROUND, tie_word_embeddings=tied))
    )


def mixtral():
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            "mixtral", **SMALL, **ROUND, num_local_experts=4, num_experts_per_tok=2, output_router_logits=False
        )
    )


def bert():
    return AutoModel.from_config(
        AutoConfig.for_model("bert", **SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )


def t5():
    return transformers.AutoModelForSeq2SeqLM.from_config(
        AutoConfig.for_model(
            "t5",
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            vocab_size=64,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )


def vit():
    return AutoModel.from_config(
        AutoConfig.for_model(
            "vit",
            **{name: value for name, value in SMALL.items() if "position" not in name and name != "vocab_size"},
            image_size=8,
            patch_size=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def loss_of(model, step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, 64, (2, 12), generator=generator)
    if model.config.model_type == "vit":
        return model(torch.randn(2, 3, 8, 8, generator=generator)).last_hidden_state.square().mean()
    if model.config.model_type == "bert":
        return model(tokens).pooler_output.square().mean()
    return model(input_ids=tokens, labels=tokens).loss


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, at):
        tokens = torch.randint(3, 64, (12,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": tokens, "labels": tokens.clone()}


class Logged(transformers.TrainerCallback):
    def __init__(self):
        self.losses, self.norms, self.evaluations = [], [], []

    def on_log(self, arguments, state, control, logs=None, **_):
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))
            self.norms.append(float(logs["grad_norm"]))
        if "eval_loss" in logs:
            self.evaluations.append(float(logs["eval_loss"]))


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

    def trained(self, folder, is_plain, accumulation, config=(), **more):
        model = seeded(gpt2)
        log = Logged()
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=accumulation,
            learning_rate=1e-3,
            max_steps=12,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=4,
            save_strategy="steps",
            save_steps=6,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            max_grad_norm=0.5,
            weight_decay=0.1,
            adam_epsilon=1e-3,
            dataloader_num_workers=0,
            save_total_limit=2,
            **more,
        )
        shared = dict(model=model, args=arguments, train_dataset=Words(), eval_dataset=Words(), callbacks=[log])
        if is_plain:
            return Trainer(**shared), log
        return (
            terrace.hf.TerraceTrainer(
                **shared,
                terrace_config=dict(config_of(strict=True, accumulation=accumulation), **dict(config)),
                terrace_options={"persistence_threshold": 128},
            ),
            log,
        )

    @isolated
    def test_trainer(self):
        for accumulation in (1, 2):
            logs, models = [], []
            for is_plain in (True, False):
                with tempfile.TemporaryDirectory() as folder:
                    trainer, log = self.trained(folder, is_plain, accumulation)
                    trainer.train()
                    trainer.save_model(folder)
                    models.append(AutoModelForCausalLM.from_pretrained(folder).state_dict())
                    logs.append(log)
                    if not is_plain:
                        self.resume(folder, accumulation, trainer, log)
            for name in ("losses", "norms", "evaluations"):
                one, other = (getattr(log, name) for log in logs)
                self.assertEqual(len(one), 3 if name == "evaluations" else 12)
                for value, expected in zip(other, one):
                    self.assertLessEqual(abs(value - expected), 2e-6 * abs(expected), name)
            for name, value in models[0].items():
                self.assertLessEqual((models[1][name] - value).abs().max().item(), 1e-5, name)

    def resume(self, folder, accumulation, trainer, log):
        again, told = self.trained(folder, False, accumulation)
        again.train(resume_from_checkpoint=f"{folder}/checkpoint-6")
        self.assertEqual(told.losses, log.losses[6:])
        self.assertEqual(masters(again.engine), masters(trainer.engine))

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

    @isolated
    def test_fp16_has_the_norms_of_fp32(self):
        norms = []
        for config in ({}, {"fp16": {"enabled": True, "loss_scale": 4096}}):
            with tempfile.TemporaryDirectory() as folder:
                trainer, log = self.trained(folder, False, 2, config)
                trainer.train()
                norms.append(log.norms)
        for norm, expected in zip(*norms):
            self.assertLessEqual(abs(norm - expected), 0.02 * expected)

    @isolated
    def test_arguments_that_contradict_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            trainer, _ = self.trained(folder, False, 1)
            trainer._terrace_config = config_of(accumulation=3)
            self.raised(terrace.ConfigError, trainer.train)
            self.raised(terrace.ConfigError, self.trained, folder, False, 1, fp16=True)


if __name__ == "__main__":
    unittest.main()
