"""The census: architectures and ways of training, each with torch alone and with an engine at several device budgets.

    python census.py                    all of it, a line a case; ten minutes of one processor
    python census.py --only mamba ia3   those whose names have one of these words

For each case the least device budget is asked for (a budget of one byte is refused with it), and training runs at 1, 1.1,
1.25, 1.5 and 2 times that, with parameters and states in host memory and on nvme, and with all on the device. A case is well
where no run ends for want of device memory, losses are torch's, and all runs have the same bits. The exit code is 1 where
one is not. Cases of packages that are not installed are told and counted.

How far a loss may be from torch's follows from fp32. Before the first update both have the same weights, and so nearly the
same bits. Each update rounds each weight once or twice here and in torch, and each of these four roundings is off by at
most w / 2^24. They are independent, so after k updates a loss with the gradient g has a standard deviation of
2^-24 sqrt(4 k / 3 sum (g w)^2). A loss may be off by DEVIATIONS of them, and by TOLERANCE for the sums of the forward pass,
whose last bits differ with the weights.
"""

import argparse
import hashlib
import math
import os
import pathlib
import pickle
import sys
import tempfile
import time
import traceback
import warnings

sys.path[:0] = [
    str(pathlib.Path(__file__).resolve().parent),
    str(pathlib.Path(__file__).resolve().parents[3] / "python"),
]

import terrace
import torch

# Every optimizer of torch imports it, and the child of each case would do so again.
import torch._dynamo
from architectures import ARCHITECTURES, TRAINED_BY
from settings import SETTINGS

FACTORS = (1, 1.1, 1.25, 1.5, 2)
STEPS, TOLERANCE, DEVIATIONS = 4, 4e-7, 4


def all_cases():
    """{name: (make, settings)}"""
    architectures = {name: (make, TRAINED_BY.get(name, {})) for name, make in ARCHITECTURES.items()}
    return {**architectures, **SETTINGS}


# --- One training ---


def made(make, settings):
    torch.manual_seed(7)
    model, batch = make()
    for module in model.modules():  # the fused paths of some models ask for packages
        if hasattr(module, "use_mambapy"):
            module.use_mambapy = False
    model.train()
    if settings.get("compile"):
        for layer in model.model.layers:
            layer.compile(backend="eager")
    return model, batch


def optimizer_of(model, settings):
    if "optimizer" in settings:
        return settings["optimizer"](model)
    return torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)


def with_torch(make, settings):
    """[(loss, its standard deviation by rounded weights) of each micro-batch and of an evaluation]"""
    model, batch = made(make, settings)
    optimizer = optimizer_of(model, settings)
    scheduler = settings["scheduler"](optimizer) if "scheduler" in settings else None
    accumulation = settings.get("accumulation", 1)
    torch.manual_seed(3)
    told = []
    for step in range(STEPS):
        for part in range(accumulation):
            loss = model(**batch(10 * step + part)).loss
            gradients = gradients_of(model, loss, accumulation)
            told.append((loss.item(), deviation(gradients, step)))
        if settings.get("clip", 1.0):
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.get("clip", 1.0))
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
    evaluation = evaluated(model, batch)
    return [*told, (evaluation, deviation(gradients_of(model, model(**batch(99)).loss, 1), STEPS))]


def gradients_of(model, loss, accumulation):
    """[(weight, its gradient of this loss)]; a part of each is added to what is there. A reentrant checkpoint knows
    backward() alone."""
    trained = [one for one in model.parameters() if one.requires_grad]
    before = [None if one.grad is None else one.grad.clone() for one in trained]
    (loss / accumulation).backward()
    return [
        (one.detach(), accumulation * (one.grad if old is None else one.grad - old))
        for one, old in zip(trained, before)
        if one.grad is not None
    ]


def deviation(gradients, updates):
    squares = sum((weight.double() * gradient.double()).square().sum().item() for weight, gradient in gradients)
    return 2.0**-24 * math.sqrt(4 * updates / 3 * squares)


def evaluated(model, batch):
    model.eval()
    with torch.no_grad():
        return model(**batch(99)).loss.item()


def config_of(settings, place, folder, memory):
    section = {"device": place, **({"nvme_path": folder} if place == "nvme" else {})}
    precision = settings.get("precision")
    options = {key: settings[key] for key in ("update", "strict") if key in settings}
    if place == "none":  # states on the device are updated when the backward pass is over, and so have the same bits
        options.pop("update", None)
    return {
        "gradient_accumulation_steps": settings.get("accumulation", 1),
        "gradient_clipping": settings.get("clip", 1.0),
        "zero_optimization": {"stage": 3, "offload_param": section, "offload_optimizer": section},
        **({precision: {"enabled": True}} if precision else {}),
        "terrace": {
            "host_memory": "64MiB",
            "threads": 1,
            "durable": False,
            **({"device_memory": memory} if memory else {}),
            **options,
        },
    }


def engine_of(make, settings, place, folder=None, memory=None):
    model, batch = made(make, settings)
    optimizer = optimizer_of(model, settings)
    engine, _, _, scheduler = terrace.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=settings.get("scheduler"),
        config=config_of(settings, place, folder, memory),
        units=settings.get("units", "auto"),
        persistence_threshold=0,
    )
    return engine, batch


def with_terrace(make, settings, place, memory=None):
    """(losses, the loss of an evaluation, a digest of all weights)"""
    with tempfile.TemporaryDirectory() as folder:
        engine, batch = engine_of(make, settings, place, folder, memory)
        torch.manual_seed(3)
        losses = []
        for step in range(STEPS):
            for part in range(settings.get("accumulation", 1)):
                loss = engine(**batch(10 * step + part)).loss
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
        result = losses, evaluated(engine.module, batch), digest(engine)
        engine.close()
        return result


def digest(engine):
    told = hashlib.sha256()
    for name, value in engine.module.state_dict().items():
        told.update(name.encode())
        told.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return told.hexdigest()


def least_of(make, settings):
    try:
        engine_of(make, settings, "cpu", memory=1)
    except terrace.CapacityError as error:
        return error.least_device_bytes
    raise AssertionError("a byte of device memory was taken")


# --- One case ---


class Outcome:
    def __init__(self):
        self.faults = []  # in words
        self.late = 0  # runs that ended for want of device memory
        self.runs = 0
        self.least = 0
        self.absent = ""


def run(make, settings, factors=FACTORS):
    outcome = Outcome()
    try:
        wanted = with_torch(make, settings)
    except ImportError as error:
        outcome.absent = str(error)
        return outcome
    outcome.least = least_of(make, settings)
    first = None
    for place, factor in places_and(factors):
        outcome.runs += 1
        where = f"{place} at {factor} x {outcome.least} bytes" if factor else place
        try:
            memory = int(factor * outcome.least) if factor else None
            found = with_terrace(make, settings, place, memory)
        except terrace.CapacityError as error:
            outcome.late += 1
            outcome.faults.append(f"{where}: {str(error).splitlines()[0]} (least {error.least_device_bytes})")
            continue
        except Exception as error:
            outcome.faults.append(f"{where}: {traceback.format_exception_only(error)[-1].strip()}")
            continue
        tolerance = settings.get("tolerance", TOLERANCE)
        for one, (other, doubt) in zip([*found[0], found[1]], wanted):
            if not abs(one - other) <= tolerance * max(abs(other), 1e-2) + DEVIATIONS * doubt:
                outcome.faults.append(f"{where}: the loss is {one!r}, and torch's {other!r}")
                break
        first = first or (where, found)
        if found != first[1]:
            outcome.faults.append(f"{where}: other bits than {first[0]}")
    return outcome


def places_and(factors):
    """All on the device, and the budgets in host memory; on nvme the first and the last of them."""
    ends = sorted({factors[0], factors[-1]})
    return [("none", None), *(("cpu", factor) for factor in factors), *(("nvme", factor) for factor in ends)]


def quiet():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        import transformers
        import transformers.masking_utils
        import transformers.modeling_utils  # here, and not in the child of each case

        transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    except ImportError:
        pass


def in_a_process(make, settings, factors=FACTORS):
    """run() in a child, so that one that ends by a signal is a fault, and nothing is left of it."""
    with tempfile.TemporaryFile() as report:
        child = os.fork()
        if not child:
            try:
                outcome = run(make, settings, factors)
            except BaseException:
                outcome = Outcome()
                outcome.faults.append(traceback.format_exc())
            report.write(pickle.dumps(outcome))
            report.flush()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        report.seek(0)
        if os.WIFSIGNALED(status):
            outcome = Outcome()
            outcome.faults.append(f"the process was ended by signal {os.WTERMSIG(status)}")
            return outcome
        return pickle.loads(report.read())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[""], help="words of names of cases")
    parser.add_argument("--factors", nargs="+", type=float, default=FACTORS, help="of the least device budget")
    arguments = parser.parse_args()
    quiet()
    well, ill, absent, runs, late = 0, 0, 0, 0, 0
    for name, (make, settings) in all_cases().items():
        if not any(word in name for word in arguments.only):
            continue
        begun = time.time()
        outcome = in_a_process(make, settings, tuple(arguments.factors))
        runs, late = runs + outcome.runs, late + outcome.late
        absent += bool(outcome.absent)
        ill += bool(outcome.faults)
        well += not outcome.faults and not outcome.absent
        word = "absent" if outcome.absent else "FAULTS" if outcome.faults else "well"
        print(f"{word:7} {name:40} least {outcome.least:8} {time.time() - begun:6.1f} s {outcome.absent}", flush=True)
        for fault in outcome.faults:
            print(f"        {fault}", flush=True)
    print(f"{well} well, {ill} with faults, {absent} absent; {runs} runs, {late} ended for want of device memory")
    return 1 if ill else 0


if __name__ == "__main__":
    sys.exit(main())
