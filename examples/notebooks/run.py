"""Runs the code of a notebook as one program, without Jupyter.

python examples/notebooks/run.py examples/notebooks/prove_it.ipynb
"""

import json
import pathlib
import sys

for name in sys.argv[1:]:
    cells = json.loads(pathlib.Path(name).read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
