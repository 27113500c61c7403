"""The law of a pipeline: no bit depends on the number of stages, nor on how many processes share one."""

import unittest

from pipe_models import PipelineTest

# (stages, processes of each, what differs from the defaults of trained())
CASES = [
    (2, 1, {}),
    (3, 1, {"precision": "bf16", "places": ("nvme", "nvme")}),
    (4, 1, {"precision": "fp16", "places": ("cpu", "nvme")}),
    (2, 2, {"precision": "bf16", "more": {"optimizer": "Muon"}}),
    (2, 1, {"places": ("nvme", "nvme"), "more": {"state_type": "int8"}}),
    (3, 2, {"precision": "bf16", "activation_checkpoint_interval": 2, "more": {"state_type": "int8"}}),
]


class Law(PipelineTest):
    def test_no_bit_depends_on_stages(self):
        for stages, data, named in CASES:
            with self.subTest(stages=stages, data=data, **named):
                self.compare(stages, data, **named)

    def test_nor_where_stages_share_a_layer(self):
        for stages, data, named in ((2, 1, {}), (3, 2, {"precision": "bf16"}), (4, 1, {"precision": "fp16"})):
            with self.subTest(stages=stages, data=data, **named):
                self.compare(stages, data, is_tied=True, **named)

    def test_a_stage_may_train_nothing(self):
        """Of frozen layers alone, of a function, or of the copy of a layer that an earlier stage trains."""
        for stages, data, named in (
            (4, 1, {"frozen": (2, 3)}),
            (4, 2, {"frozen": (2, 3), "precision": "fp16"}),
            (2, 1, {"frozen": (0, 1, 2, 3), "more": {"optimizer": "Muon"}}),
            (8, 1, {"is_tied": True, "precision": "bf16"}),
        ):
            with self.subTest(stages=stages, data=data, **named):
                self.compare(stages, data, **named)


if __name__ == "__main__":
    unittest.main()
