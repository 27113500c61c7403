"""Trainers of TRL over a store, on one rank and on two. TRL and the package datasets are not among what tools/test installs:
without them these tests are left out (docs/hugging_face.md says with which versions they have passed)."""

import contextlib
import copy
import importlib.util
import io
import pathlib
import tempfile
import unittest

import hf_models
from ranks_torch import RanksTest, seeded, together, torch
from support_torch import config_of

MISSING = [package for package in ("trl", "datasets") if importlib.util.find_spec(package) is None]

import peft
import tokenizers
import transformers
from terrace.hf import TerraceMixin
from test_hf_ranks import meeting, meets

if not MISSING:
    import datasets
    import trl

    datasets.disable_progress_bars()

    class Sft(TerraceMixin, trl.SFTTrainer):
        pass

    class Dpo(TerraceMixin, trl.DPOTrainer):
        pass


WORDS = [f"w{number}" for number in range(60)]


def tokenizer():
    names = ["<pad>", "<s>", "</s>", "<unk>", *WORDS]
    words = tokenizers.models.WordLevel({word: number for number, word in enumerate(names)}, unk_token="<unk>")
    made = tokenizers.Tokenizer(words)
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def sentence(seed, count):
    chosen = torch.randint(0, len(WORDS), (count,), generator=torch.Generator().manual_seed(seed))
    return " ".join(WORDS[at] for at in chosen)


def texts():
    return datasets.Dataset.from_dict({"text": [sentence(at, 4 + at % 3) for at in range(16)]})


def preferences():
    return datasets.Dataset.from_dict(
        {
            name: [sentence(3 * at + which, 3) + " " for at in range(16)]
            for which, name in enumerate(("prompt", "chosen", "rejected"))
        }
    )


def lora():
    return peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def trained(kind, folder, count, is_with_lora=False, is_with_reference=False, **more):
    """The log, and the norms of what was trained; of `kind` without Terrace too."""
    meets(count)
    is_sft = issubclass(kind, trl.SFTTrainer)
    arguments = (trl.SFTConfig if is_sft else trl.DPOConfig)(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4 // count,
        learning_rate=1e-3,
        adam_epsilon=1e-3,
        max_steps=3,
        logging_steps=1,
        save_strategy="steps",
        save_steps=2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **more,
    )
    config = config_of()
    given = dict(
        model=seeded(hf_models.llama),
        args=arguments,
        train_dataset=datasets.load_from_disk(str(folder.parent / ("texts" if is_sft else "preferences"))),
        processing_class=tokenizer(),
    )
    given["model"].config._name_or_path = str(folder)
    if is_with_lora:
        given["peft_config"] = lora()
    if is_with_reference:
        given["ref_model"] = copy.deepcopy(given["model"])
    if issubclass(kind, TerraceMixin):
        given["terrace_config"] = {name: config[name] for name in ("zero_optimization", "terrace")}
        given["terrace_options"] = {"persistence_threshold": 128}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.manual_seed(5)
        trainer = kind(**given)
        trainer.train()
        trainer.save_model()
        losses = [(one["loss"], one["grad_norm"]) for one in trainer.state.log_history if "loss" in one]
        if issubclass(kind, TerraceMixin):
            trainer.engine.close()
    return losses


@unittest.skipIf(MISSING, f"pip install {' '.join(MISSING)}")
class TrlOnRanks(RanksTest):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        # What the first rank computes before all ranks read from the place of the data, which has to have one.
        texts().save_to_disk(str(self.folder / "texts"))
        preferences().save_to_disk(str(self.folder / "preferences"))

    def on(self, count, kind, name, **more):
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            ends = together(count, lambda rank: trained(kind, self.folder / name, count, **more), meeting(place, count))
        for end in ends:
            self.assertFalse(end.text or end.signal_number, end.text)
        return [end.value for end in ends]

    def assert_ranks_are_one(self, kind, weights, **more):
        (one,) = self.on(1, kind, "one", **more)
        self.assertEqual(len(one), 3)
        self.assertEqual(self.on(2, kind, "two", **more), [one, one])
        self.assertEqual((self.folder / "one" / weights).read_bytes(), (self.folder / "two" / weights).read_bytes())
        return one

    def assert_is_plain(self, one, kind, **more):
        (plain,) = self.on(1, kind, "plain", **more)
        for (loss, norm), (expected, expected_norm) in zip(one, plain):
            self.assertLessEqual(abs(loss - expected), 2e-6 * abs(expected))
            self.assertLessEqual(abs(norm - expected_norm), 1e-5 * abs(expected_norm))

    def test_sft_of_the_whole_model(self):
        self.assert_is_plain(self.assert_ranks_are_one(Sft, "model.safetensors"), trl.SFTTrainer)

    def test_dpo_of_adapters_whose_reference_is_the_model_without_them(self):
        one = self.assert_ranks_are_one(Dpo, "adapter_model.safetensors", is_with_lora=True)
        self.assert_is_plain(one, trl.DPOTrainer, is_with_lora=True)

    def test_dpo_with_a_reference_in_torch(self):
        self.assert_ranks_are_one(Dpo, "model.safetensors", is_with_reference=True)

    def test_dpo_whose_reference_is_computed_before(self):
        self.assert_ranks_are_one(Dpo, "model.safetensors", precompute_ref_log_probs=True)


if __name__ == "__main__":
    unittest.main()
