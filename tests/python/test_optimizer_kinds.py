"""What lists optimizers in Python, held to the library's one table of them."""

import re
import unittest

import terrace
from support import ROOT
from terrace import _lib
from terrace.optimizer_kinds import optimizer_kinds


class Table(unittest.TestCase):
    def test_the_header_of_c_has_the_rows_in_their_order(self):
        self.assertEqual(list(optimizer_kinds()), list(_lib.ENUMS["terrace_optimizer_kind"]))
        numbers = list(_lib.ENUMS["terrace_optimizer_kind"].values())
        self.assertEqual(numbers, list(range(len(numbers))))

    def test_an_optimizer_that_says_nothing_has_the_defaults_of_its_row(self):
        for word, row in optimizer_kinds().items():
            optimizer = terrace.Optimizer(word)
            self.assertEqual((optimizer.betas[1], optimizer.eps), (row.beta2, row.eps), word)

    def test_the_page_of_the_configuration_has_every_row(self):
        page = (ROOT / "docs/config.md").read_text()
        choices = re.search(r"^\| `type` \| one of (.*Adagrad[^|]*)\|", page, re.M).group(1)
        for word in optimizer_kinds():
            self.assertIn(word, choices.lower())


if __name__ == "__main__":
    unittest.main()
