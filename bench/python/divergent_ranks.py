"""The campaign `divergent` of attack: trainings of several ranks whose passes differ, against one rank."""

import gc
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Divergent:
    PATIENCE = 120  # seconds until a rank hangs

    def __init__(self, options, counts):
        sys.path.insert(0, str(ROOT / "tests/python/torch"))
        import divergent
        import ranks_torch

        ranks_torch.PATIENCE = self.PATIENCE
        self.divergent, self.options, self.counts = divergent, options, counts
        gc.collect()
        gc.freeze()

    def run(self):
        for seed in range(self.options.seed, self.options.seed + self.options.count):
            case = self.divergent.drawn_case(seed)
            failure = self.divergent.failure_of(seed, case)
            self.counts["runs"] += 1
            self.counts[f"of {case['ranks']} ranks"] += 1
            if failure:
                kind = "hung" if "signal 9" in failure else "refused" if failure.startswith("rank ") else "wrong"
                self.counts[kind] += 1
                print(f"{kind}: seed {seed}: {failure}\n  {case}", flush=True)
