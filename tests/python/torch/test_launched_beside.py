"""terrace.initialize under launchers that are not of torch: an unchanged script trains on as many ranks as were started."""

import os
import shutil
import sys
import unittest

from launched_script import LaunchedTest
from support_torch import isolated


class Launched(LaunchedTest):
    @unittest.skipUnless(os.environ.get("TERRACE_PROGRAM"), "the program is not built")
    def test_terrace_launch(self):
        self.launched(os.environ["TERRACE_PROGRAM"], "launch", "-n", "2", "--", sys.executable)

    @unittest.skipUnless(shutil.which("mpirun"), "Open MPI is not installed")
    @isolated
    def test_mpirun(self):
        for name, value in {"ALLOW_RUN_AS_ROOT": "1", "ALLOW_RUN_AS_ROOT_CONFIRM": "1"}.items():
            os.environ["OMPI_" + name] = value
        os.environ["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
        self.launched("mpirun", "-n", "2", sys.executable)


if __name__ == "__main__":
    unittest.main()
