"""The example whose model processes divide by its tp_plan learns the same as in one process."""

import os
import tempfile
import unittest

from example_case import ExampleCase


class Divided(ExampleCase):
    def test_a_model_of_transformers_that_processes_share(self):
        """Two copies, each in two processes, from the drive."""
        name = "hf_tensor_parallel.py"
        with tempfile.TemporaryDirectory() as folder:
            alone, _ = self.losses(name, "transformers")
            arguments = ("--tensor-parallel", "2", "--nvme-path", folder)
            together, _ = self.losses(name, "transformers", *arguments, processes=4)
            self.assertLess(alone[-1], alone[0] - 2)
            self.assertEqual(len(together), len(alone))
            for one, of_four in zip(alone, together):
                self.assertAlmostEqual(one, of_four, delta=2e-3)
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
