"""terrace.initialize on several ranks: no bit depends on how many there are, whatever lies where."""

import json
import os
import tempfile
import unittest

from ranks_torch import (
    RanksTest,
    config_of,
    engine_of,
    in_order,
    masters,
    seeded,
    train_ranks,
)
from support_torch import Coded, Gpt, Mlp
from terrace.store.run import Run

# Of a step, over all ranks.
MICRO_BATCHES = 6
STEPS = 3
# (model, parameters, states, update, precision, clipping, optimizer, moments), so that each pair of levels of the first
# seven is there.
CASES = [
    (Mlp, "device", "cpu", "after_backward", "fp32", 1.0, "AdamW", "fp32"),
    (Gpt, "device", "nvme", "next_forward", "bf16", 0.0, "Lion", "fp32"),
    (Mlp, "cpu", "cpu", "during_backward", "bf16", 0.0, "AdamW", "fp32"),
    (Gpt, "cpu", "cpu", "next_forward", "fp16", 1.0, "AdamW", "fp32"),
    (Gpt, "cpu", "nvme", "after_backward", "fp32", 0.0, "SGD", "fp32"),
    (Mlp, "nvme", "nvme", "during_backward", "fp32", 1.0, "Lion", "fp32"),
    (Gpt, "nvme", "cpu", "after_backward", "bf16", 1.0, "AdamW", "fp32"),
    (Mlp, "nvme", "nvme", "next_forward", "fp16", 0.0, "AdamW", "fp32"),
    (Gpt, "device", "device", "after_backward", "fp16", 1.0, "AdamW", "fp32"),
    (Gpt, "device", "nvme", "during_backward", "fp16", 0.0, "AdamW", "fp32"),
    (Gpt, "nvme", "nvme", "next_forward", "bf16", 1.0, "AdamW", "int8"),
    (Mlp, "device", "cpu", "during_backward", "fp32", 0.0, "Lion", "int8"),
    (Coded, "cpu", "cpu", "after_backward", "fp32", 1.0, "AdamW", "fp32"),
    (Coded, "nvme", "nvme", "during_backward", "bf16", 0.0, "AdamW", "int8"),
    (Coded, "device", "cpu", "next_forward", "bf16", 1.0, "Lion", "fp32"),
    (Gpt, "cpu", "nvme", "after_backward", "bf16", 1.0, "Muon", "fp32"),
    (Mlp, "nvme", "nvme", "after_backward", "fp32", 1.0, "Muon", "int8"),
    (Gpt, "device", "cpu", "after_backward", "fp16", 0.0, "Muon", "fp32"),
]


def config_for(case, folder, ranks):
    _, parameters, states, update, precision, clip, optimizer, moments = case
    named = {"optimizer": optimizer, "update": update, "state_type": moments}
    config = config_of(parameters, states, folder, MICRO_BATCHES // ranks, clip, precision, **named)
    if precision == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 8}
    return config


def held(place, ranks, model=Mlp):
    """What a rank of a training has planned and held: its plan, and the tiers in the last line of its log about memory."""

    def train(rank):
        with tempfile.TemporaryDirectory() as folder:
            # Chunks of twelve tiles, of which two and three ranks have equal shares.
            config = config_of(place, place, folder, MICRO_BATCHES // ranks, chunk_elements=49152)
            engine = engine_of(seeded(model, 256), config, persistence_threshold=0)
            log = os.path.join(folder, "steps.jsonl")
            with Run(engine.store, log_path=log, no_control=True) as run:
                for step in range(STEPS):
                    train_ranks(engine, 1, step)
                    run.step_done(step + 1)
                run.end(STEPS)
            plan = engine.store.plan
            engine.close()
            with open(log) as file:
                lines = [json.loads(line) for line in file]
        return plan, {tier["name"]: tier for tier in [one for one in lines if one["event"] == "memory"][-1]["tiers"]}

    return train


def trained(case, ranks, threshold=128):
    """What a rank has to tell of a training: losses, norms, masters."""

    def train(rank):
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(seeded(case[0]), config_for(case, folder, ranks), persistence_threshold=threshold)
            told = train_ranks(engine, STEPS), masters(engine)
            engine.close()
            return told

    return train


class Ranks(RanksTest):
    def compare(self, case, threshold=128):
        one = self.on_ranks(1, trained(case, 1, threshold))[0]
        for count in (2, 3):
            found = self.on_ranks(count, trained(case, count, threshold))
            with self.subTest(case=case, ranks=count):
                self.assertEqual(in_order([told for told, _ in found]), one[0])
                for _, ends in found:
                    self.assertEqual(ends, one[1])

    def test_no_bit_depends_on_their_number(self):
        for case in CASES:
            self.compare(case)

    def test_each_holds_what_it_has_planned_and_all_together_the_model_once(self):
        for place, tier, purposes in (
            ("cpu", "host", ("parameters", "optimizer states", "gradient accumulators")),
            ("nvme", "nvme", ("parameters", "states")),
        ):
            of_one = None
            for count in (1, 2, 3):
                once = dict.fromkeys(purposes, 0)
                for plan, tiers in self.on_ranks(count, held(place, count)):
                    planned = {"device": plan.device_bytes, "host": plan.host_bytes, "nvme": plan.file_bytes}
                    with self.subTest(place=place, ranks=count):
                        for name, one in tiers.items():
                            self.assertEqual(one["peak_bytes"], planned[name], name)
                    for use in tiers[tier]["uses"]:
                        if use["purpose"] in once:
                            once[use["purpose"]] += use["bytes"]
                of_one = of_one or once
                with self.subTest(place=place, ranks=count):
                    self.assertEqual(once, of_one)
            self.assertTrue(all(of_one.values()), of_one)

    def test_a_base_of_few_bits_takes_what_was_planned_to_the_byte(self):
        """Of two ranks the one with the larger share of a last chunk."""
        for place in ("device", "cpu", "nvme"):
            for count in (1, 2):
                held_by_each = self.on_ranks(count, held(place, count, Coded))
                plan = held_by_each[0][0]
                planned = {"device": plan.device_bytes, "host": plan.host_bytes, "nvme": plan.file_bytes}
                with self.subTest(place=place, ranks=count):
                    for name in held_by_each[0][1]:
                        peaks = [tiers[name]["peak_bytes"] for _, tiers in held_by_each]
                        self.assertEqual(max(peaks), planned[name], name)

    def test_small_parameters_are_as_of_one_rank(self):
        self.compare(CASES[0], threshold=64 << 10)
        self.compare(CASES[7], threshold=64 << 10)


if __name__ == "__main__":
    unittest.main()
