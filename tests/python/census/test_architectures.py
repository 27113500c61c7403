"""A tenth of the census: the architectures that read weights in the oddest ways, at the least budget and a little more."""

import unittest

try:
    import torch  # noqa: F401
except ImportError:
    raise unittest.SkipTest("torch is not installed") from None

import census

CASES = ("albert", "deberta-v2", "rwkv", "borrowed weight")


class Census(unittest.TestCase):
    def check(self, cases):
        census.quiet()
        known = census.all_cases()
        runs = 0
        for name in cases:
            outcome = census.in_a_process(*known[name], factors=(1, 1.25))
            self.assertEqual(outcome.faults, [], name)
            runs += outcome.runs
        self.assertGreater(runs, 0)

    def test_some_architectures(self):
        self.check(CASES)


if __name__ == "__main__":
    unittest.main()
