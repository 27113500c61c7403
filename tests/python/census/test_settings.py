"""A tenth of the census: the ways of training that hold most at once, at the least budget and a little more."""

import unittest

from test_architectures import Census as Shared

CASES = (
    "checkpoint, reentrant, single modules",
    "checkpoint around functions",
    "llama, reentrant around calls",
    "lora on embeddings, modules_to_save",
)


class Census(Shared):
    test_some_architectures = None

    def test_some_ways_of_training(self):
        self.check(CASES)


del Shared

if __name__ == "__main__":
    unittest.main()
