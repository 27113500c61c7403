#!/usr/bin/env python3
"""Makes tests/optimizer_cpu/torch_steps.h: what torch.optim makes, in fp64, of a few weights in five steps, with every
option of Adam, AdamW, Adagrad and SGD; and Lion after its paper (arXiv:2302.06675, algorithm 2), which torch lacks.

    python bench/compare/optimizers/make_expected.py > tests/optimizer_cpu/torch_steps.h
"""

import itertools

import torch

WEIGHTS = 6
STEPS = 5
LR, BETAS, EPS = 0.01, (0.9, 0.98), 1e-8


def start():
    return torch.tensor([0.25 * (i - 2.5) for i in range(WEIGHTS)], dtype=torch.float64)


def gradient(step):
    """The same formula is in the test; every number is exact in fp32."""
    return torch.tensor([((7 * i + 5 * step) % 13 - 6) / 16 for i in range(WEIGHTS)], dtype=torch.float64)


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                beta1, beta2 = group["betas"]
                c = beta1 * m + (1 - beta1) * p.grad
                p.data -= group["lr"] * (torch.sign(c) + group["weight_decay"] * p.data)
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def cases():
    for decay in (0.0, 0.1):
        common = dict(lr=LR, weight_decay=decay)
        setting = f".lr = {LR}, .beta1 = {BETAS[0]}, .beta2 = {BETAS[1]}, .eps = {EPS}, .weight_decay = {decay}"
        for name, one, adamw in (("Adam", torch.optim.Adam, "false"), ("AdamW", torch.optim.AdamW, "true")):
            yield (
                f"{name}, decay {decay}",
                f".kind = OptimizerKind::adam, {setting}, .adamw_mode = {adamw}",
                lambda p, one=one: one(p, betas=BETAS, eps=EPS, **common),
            )
        yield (
            f"Adagrad, decay {decay}",
            f".kind = OptimizerKind::adagrad, {setting}",
            lambda p: torch.optim.Adagrad(p, eps=EPS, **common),
        )
        yield (
            f"Lion, decay {decay}",
            f".kind = OptimizerKind::lion, {setting}",
            lambda p: Lion(p, betas=BETAS, **common),
        )
        for momentum, dampening, nesterov in itertools.product((0.0, 0.9), (0.0, 0.3), (False, True)):
            if (nesterov and (momentum == 0 or dampening != 0)) or (momentum == 0 and dampening != 0):
                continue
            options = dict(momentum=momentum, dampening=dampening, nesterov=nesterov)
            yield (
                f"SGD, decay {decay}, {options}".replace('"', "'"),
                f".kind = OptimizerKind::sgd, {setting}, .momentum = {momentum}, .dampening = {dampening}, "
                f".nesterov = {str(nesterov).lower()}",
                lambda p, options=options: torch.optim.SGD(p, **common, **options),
            )


print("// Made by bench/compare/optimizers/make_expected.py with torch", torch.__version__.split("+")[0] + ";")
print("// not to be changed by hand.")
print(
    """#pragma once

#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

struct TorchSteps {
  const char* name;
  OptimizerSettings settings;
  double weights[%d][%d];  // after each step
};

// clang-format off
inline const TorchSteps kTorchSteps[] = {"""
    % (STEPS, WEIGHTS)
)
for name, settings, make in cases():
    p = torch.nn.Parameter(start())
    optimizer = make([p])
    rows = []
    for step in range(1, STEPS + 1):
        p.grad = gradient(step)
        optimizer.step()
        rows.append("{" + ", ".join(f"{value:.17g}" for value in p.tolist()) + "}")
    rows = ",\n      ".join(rows)
    print(f'    {{"{name}",\n     {{{settings}}},\n     {{{rows}}}}},')
print("""};
// clang-format on

}  // namespace terrace""")
