"""Functions that torch.compile leaves alone, at the price of a graph break, as FSDP2's hooks do.

torch.compiler.disable would do, but loads the compiler, which takes seconds, for those too who do not compile.
"""

import functools

import torch

try:
    from torch._C._dynamo.eval_frame import set_eval_frame, skip_code
except ImportError:
    set_eval_frame = None


def uncompiled(function):
    if set_eval_frame is None:
        return torch.compiler.disable(function)

    @functools.wraps(function)
    def wrapper(*arguments):
        before = set_eval_frame(None)
        try:
            return function(*arguments)
        finally:
            set_eval_frame(before)

    skip_code(wrapper.__code__)
    wrapper._torchdynamo_disable = True
    wrapper._torchdynamo_disable_msg = "it leases parameters from Terrace"
    return wrapper
