"""What a run holds and loses, and where the time of a step goes, as charts."""

import re
from itertools import groupby

from drawing import BOLD, LETTER, NORMAL, ROOT, SMALL, WIDTH, Drawing, band, pair, shown_bytes

MIB = 1 << 20


def nice_step(extent, count):
    """The least of 1, 2 and 5 times a power of ten that cuts the extent into at most so many parts."""
    power = 10.0**-9
    while True:
        for factor in (1, 2, 5):
            if extent / (factor * power) <= count:
                return factor * power
        power *= 10


def tick_text(value):
    return f"{value:.6f}".rstrip("0").rstrip(".")


# --- Memory of the three tiers over a step ---

MEMORY_LEFT, MEMORY_RIGHT = 8, 632
PHASES = {"forward": "c-sky", "backward": "c-orange", "update": "c-green"}
STRIPS = {
    "h2d": ("parameters to the device", "c-blue"),
    "d2h": ("gradients to the host", "c-orange"),
    "nvme_read": ("read from nvme", "c-green"),
    "nvme_write": ("written to nvme", "c-red"),
}


def memory_layers(picture, tiers):
    """Of each tier: a name, and layers of a name, a colour and the bytes in each part of the step."""
    device, host, parts = picture["device"], picture["host"], picture["parts"]
    uses = {tier["name"]: {use["purpose"]: use["bytes"] for use in tier["uses"]} for tier in tiers}
    slots = lambda counts: [device["slot_bytes"] * count for count in counts]
    always = lambda count: [count] * parts
    kept = uses["host"].get("parameters", 0), uses["host"].get("optimizer states", 0)
    ring = [host["ring_slot_bytes"] * count for count in host["ring"]]
    rest = [all_ - sum(kept) - used for all_, used in zip(host["bytes"], ring)]
    states = uses["nvme"].get("states", 0) + uses["nvme"].get("optimizer states", 0)
    leaving = [sum(two) for two in zip(slots(device["grad"]), slots(device["leaving"]))]
    return {
        "device": [
            ("activations, workspaces", "faint", always(device["other_bytes"])),
            ("parameters", "c-blue", slots(device["param"])),
            ("gradients", "c-orange", leaving),
        ],
        "host": [
            ("parameters", "c-blue", always(kept[0])),
            ("optimizer states", "c-green", always(kept[1])),
            ("I/O ring in use", "c-yellow", ring),
            ("staging and free ring", "grid", rest),
        ],
        "nvme": [
            ("parameters", "c-blue", always(uses["nvme"].get("parameters", 0))),
            ("optimizer states, room for two versions", "c-green", always(states)),
        ],
    }


def draw_memory(theme, data):
    picture, tiers = data["picture"], {tier["name"]: tier for tier in data["tiers"]}
    drawing = Drawing(theme, f"Memory of the three tiers over step {picture['step']}", 652)
    xs = [MEMORY_LEFT + (MEMORY_RIGHT - MEMORY_LEFT) * i / picture["parts"] for i in range(picture["parts"] + 1)]
    layers = memory_layers(picture, data["tiers"])
    links = {link["key"]: link for link in picture["links"]}
    top = 10 + draw_phases(drawing, picture, 4)
    for name, height in (("device", 104), ("host", 104), ("nvme", 64)):
        draw_tier(drawing, tiers[name], layers[name], xs, top, height)
        top += height + 46
        for key in {"device": ("h2d", "d2h"), "host": ("nvme_read", "nvme_write")}.get(name, ()):
            draw_strip(drawing, links[key], xs, top)
            top += 31
        top += 8
    draw_seconds(drawing, picture["length_ns"], top)
    return drawing


def draw_phases(drawing, picture, y):
    """Names of the phases, a row of the passes, and below it one of the update, which may run beside them. Passes of layers
    alternate where activations are made again. Returns where the rows end."""
    scale = (MEMORY_RIGHT - MEMORY_LEFT) / picture["length_ns"]
    x = MEMORY_LEFT
    for name, colour in PHASES.items():
        drawing.rect(x, y + 2, 13, 13, colour)
        drawing.text(x + 18, y + 14, name)
        x += 36 + LETTER * SMALL * len(name)
    y += 22
    for names in (("forward", "backward"), ("update",)):
        own = [phase for phase in picture["phases"] if phase[0] in names]
        for name, begin, end in own:
            drawing.rect(MEMORY_LEFT + begin * scale, y, max((end - begin) * scale, 0.5), 14, PHASES[name])
        y += 16 if own else 0
    return y


def draw_tier(drawing, tier, layers, xs, top, height):
    held = [sum(values) for values in zip(*(layer[2] for layer in layers))]
    budget = tier["budget_bytes"]
    full = max(budget, *held)
    y_of = lambda count: top + 22 + height - height * count / full
    said = f"budget {shown_bytes(budget)}" if budget else "the disk is the limit"
    exact = tier["planned_bytes"] == tier["peak_bytes"]
    peak = f"planned {shown_bytes(tier['planned_bytes'])}, peak " + (
        "the same, to the byte" if exact else shown_bytes(tier["peak_bytes"])
    )
    drawing.text(MEMORY_LEFT, top + 14, tier["name"], size=NORMAL, **BOLD)
    drawing.text(MEMORY_LEFT + 74, top + 14, said, "bad" if budget else "soft")
    drawing.text(MEMORY_RIGHT, top + 14, peak, "soft", anchor="end")
    below = [0] * len(held)
    for _, colour, values in layers:
        above = [one + other for one, other in zip(below, values)]
        drawing.path(band(xs, [y_of(one) for one in below], [y_of(one) for one in above]), fill=colour)
        below = above
    drawing.rect(xs[0], top + 22, xs[-1] - xs[0], height, edge="line")
    if budget:
        drawing.line(xs[0], y_of(budget), xs[-1], y_of(budget), "bad", 2, "7 4")
    x = MEMORY_LEFT
    for name, colour, _ in layers:
        drawing.rect(x, top + height + 28, 11, 11, colour, "line" if colour == "grid" else None)
        drawing.text(x + 15, top + height + 38, name, "soft", size=SMALL - 1)
        x += 27 + LETTER * (SMALL - 1) * len(name)


def draw_strip(drawing, link, xs, y):
    """Parts in which the link was busy, the more the darker."""
    name, colour = STRIPS[link["key"]]
    drawing.text(xs[0], y + 12, f"{name}: {shown_bytes(link['bytes'])}", size=SMALL - 1)
    drawing.rect(xs[0], y + 17, xs[-1] - xs[0], 10, "grid")
    at = 0
    for level, parts in groupby(link["shares"], key=lambda share: -(-share // 200)):
        count = len(list(parts))
        if level:
            drawing.rect(xs[at], y + 17, xs[at + count] - xs[at], 10, colour, opacity=0.25 + 0.15 * level)
        at += count


def draw_seconds(drawing, length_ns, y):
    seconds = length_ns / 1e9
    scale = (MEMORY_RIGHT - MEMORY_LEFT) / seconds
    step = nice_step(seconds, 6)
    for i in range(int(seconds / step) + 1):
        x = MEMORY_LEFT + i * step * scale
        drawing.line(x, y - 12, x, y - 6, "faint")
        words = f"{tick_text(i * step)} s" + (" of the step" if i == 0 else "")
        drawing.text(x, y + 8, words, "soft", anchor=None if i == 0 else "middle")


# --- Where the time of a step goes ---

PARTS_MARK = "<!-- made by bench/compare/torch/engine.py --parts -->"
# Names that the table has for short.
SAID = {
    "torch fused": "torch, fused AdamW",
    "Terrace device, blocks": "Terrace, all on the device",
    "Terrace cpu, blocks": "Terrace, in host memory",
    "Terrace cpu, a third": "Terrace, in host memory, a third on the device",
    "DeepSpeed cpu": "DeepSpeed ZeRO-3, CPU offload",
    "FSDP2 cpu": "FSDP2, CPU offload",
}
PART_COLOURS = ("c-sky", "c-orange", "c-green")


def parts_of_steps():
    """The table of docs/step_time.md: names of the parts, and for each contender the milliseconds of each and of a step."""
    page = (ROOT / "docs/step_time.md").read_text()
    table = re.search(re.escape(PARTS_MARK) + r"\n((\|.*\n)+)", page)[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {"parts": rows[0][1:-1], "rows": [(row[0], [float(cell) for cell in row[1:]]) for row in rows[2:]]}


def draw_step_time(theme, data):
    rows = data["rows"]
    drawing = Drawing(theme, "Where the time of a step goes, beside torch, FSDP2 and DeepSpeed", 90 + 52 * len(rows))
    longest = max(max(sum(parts[:-1]), parts[-1]) for _, parts in rows)
    scale = (WIDTH - 16) / longest
    x = 8
    for name, colour in zip(data["parts"], PART_COLOURS):
        drawing.rect(x, 5, 14, 14, colour)
        drawing.text(x + 20, 18, name)
        x += 46 + LETTER * SMALL * len(name)
    y = 34
    for name, (*parts, whole) in rows:
        drawing.text(8, y + 15, SAID.get(name, name), **(BOLD if name.startswith("Terrace") else {}))
        drawing.text(WIDTH - 8, y + 15, f"{whole:.0f} ms", anchor="end", **BOLD)
        x = 8
        for part, colour in zip(parts, PART_COLOURS):
            drawing.rect(x, y + 21, part * scale, 22, colour)
            if part * scale > LETTER * SMALL * len(f"{part:.0f}") + 4:
                drawing.text(x + part * scale / 2, y + 37, f"{part:.0f}", theme.on_series, anchor="middle")
            x += part * scale
        y += 52
    step = nice_step(longest, 5)
    for i in range(int(longest / step) + 1):
        at = 8 + i * step * scale
        drawing.line(at, 53, at, y - 2, "text", 1, opacity=0.15)
        drawing.text(at, y + 15, tick_text(i * step) + (" ms" if i else ""), "soft", anchor="middle" if i else None)
    drawing.text(WIDTH / 2, y + 38, "processor time of a step", "soft", anchor="middle")
    return drawing


# --- Losses of placements, one over the other ---

LOSS_COLOURS = ("c-sky", "c-blue", "c-orange", "text")
LOSS_WIDTHS = (15, 10, 5, 1.5)


def draw_losses(theme, data):
    """Curves that are equal lie over each other, the first one widest: of each an edge can be seen."""
    curves = data["curves"]
    drawing = Drawing(theme, "Losses of placements, one over the other", 408)
    left, right, top, bottom = 46, 624, 34, 360
    steps = len(curves[0][1])
    values = [loss for _, losses in curves for loss in losses]
    low, step = min(values), nice_step(max(values) - min(values), 6)
    low, high = int(low / step) * step, (int(max(values) / step) + 1) * step
    x_of = lambda i: left + (right - left) * i / (steps - 1)
    y_of = lambda loss: bottom - (bottom - top) * (loss - low) / (high - low)
    for i in range(round((high - low) / step) + 1):
        y = y_of(low + i * step)
        drawing.line(left, y, right, y, "grid")
        drawing.text(left - 8, y + 5, tick_text(low + i * step), "soft", anchor="end")
    drawing.text(left - 38, 18, "training loss, nats per token", "soft")
    across = nice_step(steps, 6)
    for at in range(0, steps + 1, int(across)):
        drawing.text(x_of(max(at, 1) - 1), bottom + 20, max(at, 1), "soft", anchor="middle")
    drawing.text((left + right) / 2, bottom + 40, "step", "soft", anchor="middle")
    y = top + 26
    apart = max(abs(one - other) for _, losses in curves for one, other in zip(losses, curves[0][1]))
    for (name, losses), colour, width in zip(curves, LOSS_COLOURS, LOSS_WIDTHS):
        d = "M" + " L".join(pair(x_of(i), y_of(loss)) for i, loss in enumerate(losses))
        drawing.path(d, colour, width, stroke_linejoin="round", stroke_linecap="round")
        drawing.line(right - 352, y - 5, right - 312, y - 5, colour, width)
        drawing.text(right - 302, y, name)
        y += 26
    words = f"{steps} losses each; largest difference: {apart:g}"
    drawing.text(right - 352, y + 6, words, **BOLD)
    return drawing
