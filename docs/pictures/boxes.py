"""Who sends what between ranks and hosts, and the floors of the source tree, as boxes."""

import importlib.machinery
import importlib.util
import textwrap

from drawing import BOLD, LETTER, NORMAL, ROOT, SMALL, WIDTH, Drawing, shown_bytes

# --- The floors of the house ---

WINDOW, PANE = 19, 13  # a room in the drawing, and what of it is glass
LINE = 19
WIDE = 500  # a module in which the rooms have their names


def source_tree():
    """tests/source_tree/draw, which knows the rooms, and what it reads of them."""
    loader = importlib.machinery.SourceFileLoader("source_tree_draw", str(ROOT / "tests/source_tree/draw"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module, module.read_rooms(ROOT / "tests/source_tree/rooms")


def floors_of_tree():
    """Of each storey, from the ground up, the modules: name, purpose, and the names of the rooms on each floor of its own."""
    tree, rooms = source_tree()
    return [
        [(name, rooms[name].purpose.replace("`", ""), own_floors(tree, name, rooms)) for name in storey]
        for storey in tree.module_floors(rooms)
    ]


def own_floors(tree, module, rooms):
    """Empty where the module is one room."""
    if not tree.rooms_of(module, rooms):
        return []
    names = lambda floor: [
        "the module's own" if name == module else tree.shown(name, module).rstrip("/") for name in floor
    ]
    return [names(floor) for floor in tree.room_floors(module, rooms)]


def _words_width(module, width):
    """How wide the words in a module are, beside its rooms."""
    names = max((len(", ".join(floor)) for floor in module[2]), default=0) * LETTER * (SMALL - 1) if width > WIDE else 0
    return width - 18 - names - (WINDOW * max(map(len, module[2])) + 10 if module[2] else 0)


def _said(module, width):
    """What the module is for, in lines beside its rooms, if it is wide enough."""
    room = _words_width(module, width)
    return textwrap.wrap(module[1], int(room / (LETTER * (SMALL - 1)))) if room > 180 else []


def _height(module, width):
    return max(len(module[2]) * WINDOW + 10, 34 + LINE * len(_said(module, width)))


def draw_floors(theme, storeys):
    left, gap = 36, 6
    widths = [(WIDTH - 4 - left - gap * (len(modules) - 1)) / len(modules) for modules in storeys]
    heights = [max(_height(module, width) for module in modules) for modules, width in zip(storeys, widths)]
    drawing = Drawing(theme, "The floors of the source tree", 68 + sum(heights) + gap * len(heights))
    y = 36
    drawing.path(f"M{left - 8} {y - 6} L{(left + WIDTH - 4) / 2} 4 L{WIDTH} {y - 6}Z", fill="c-grey", opacity=0.35)
    for number in reversed(range(len(storeys))):
        drawing.text(left - 12, y + heights[number] / 2 + 6, number, "soft", NORMAL, "end")
        for place, module in enumerate(storeys[number]):
            _draw_module(drawing, module, left + place * (widths[number] + gap), y, widths[number], heights[number])
        y += heights[number] + gap
    drawing.line(left - 8, y, WIDTH, y, "text", 3)
    drawing.rect(left, y + 14, PANE, PANE, "c-orange", radius=1)
    drawing.text(left + 18, y + 25, "a room: a folder of sources, on its floor of the module", "soft", SMALL - 1)
    return drawing


def _draw_module(drawing, module, x, y, width, height):
    name, _, floors = module
    drawing.rect(x, y, width, height, "c-blue", radius=4, fill_opacity=0.12)
    drawing.rect(x, y, width, height, edge="c-blue", radius=4)
    size = min(SMALL, (width - 18) / (len(name) + 1) / (LETTER + 0.06))  # of bold letters
    drawing.text(x + 9, y + 23, name + "/", size=size, **BOLD)
    for line, words in enumerate(_said(module, width)):
        drawing.text(x + 9, y + 24 + LINE * (line + 1), words, "soft", SMALL - 1)
    for floor, rooms in enumerate(floors):
        bottom = y + height - 7 - WINDOW * floor
        for place in range(len(rooms)):
            at = x + width - 7 - WINDOW * (len(rooms) - place) + WINDOW - PANE
            drawing.rect(at, bottom - PANE, PANE, PANE, "c-orange", radius=1)
        if width > WIDE:
            left = x + width - 14 - WINDOW * max(map(len, floors))
            drawing.text(left, bottom - 1, ", ".join(rooms), "text", SMALL - 1, "end")


# --- Who sends what between ranks and hosts ---

RANK_WIDTH, RANK_HEIGHT, MARGIN = 214, 106, 10
BETWEEN_RANKS = 150
LANES = (("parameters", "gather", "c-blue"), ("gradients", "exchange", "c-orange"))


def draw_ranks(theme, step):
    """What the first rank, as every other one, receives in a step, and sends: `step` is its line of the log."""
    height = 40 + 2 * RANK_HEIGHT + BETWEEN_RANKS + MARGIN
    drawing = Drawing(theme, "Who sends what between ranks and hosts", height + 12)
    lefts = (6, WIDTH - 6 - RANK_WIDTH - 2 * MARGIN)
    tops = (46, 46 + RANK_HEIGHT + BETWEEN_RANKS)
    for host, x in enumerate(lefts):
        drawing.rect(x, 6, RANK_WIDTH + 2 * MARGIN, height, "c-grey", radius=8, fill_opacity=0.1)
        drawing.rect(x, 6, RANK_WIDTH + 2 * MARGIN, height, edge="soft", radius=8)
        drawing.text(x + MARGIN, 32, f"host {host + 1}", "soft", NORMAL, **BOLD)
        for place, y in enumerate(tops):
            _draw_rank(drawing, 2 * host + place, x + MARGIN, y)
        _draw_within(drawing, step, x + MARGIN, tops[0] + RANK_HEIGHT, tops[1])
    for y in tops:
        _draw_between(drawing, step, lefts[0] + RANK_WIDTH + MARGIN, lefts[1] + MARGIN, y)
    for line, words in enumerate(("over the network,", "each way, in a step")):
        drawing.text(WIDTH / 2, tops[0] + RANK_HEIGHT + 70 + LINE * line, words, "soft", SMALL - 1, "middle")
    return drawing


def _draw_rank(drawing, rank, x, y):
    drawing.rect(x, y, RANK_WIDTH, RANK_HEIGHT, "card", "text", 5)
    drawing.text(x + 10, y + 25, f"rank {rank}", size=NORMAL, **BOLD)
    for line, words in enumerate(("holds a quarter of all", "parameters, gradients", "and optimizer states")):
        drawing.text(x + 10, y + 48 + LINE * line, words, "soft")


def _draw_within(drawing, step, x, top, bottom):
    """Between two ranks of a host, each of which reads the other's memory."""
    for place, (name, lane, colour) in enumerate(LANES):
        at = x + 8 + 112 * place
        count = step[f"{lane}_in_bytes"] - step[f"host_{lane}_in_bytes"]
        drawing.arrow([(at, (top + bottom) / 2), (at, top + 3)], colour, 3)
        drawing.arrow([(at, (top + bottom) / 2), (at, bottom - 3)], colour, 3)
        drawing.text(at + 9, top + 62, name)
        drawing.text(at + 9, top + 83, shown_bytes(count), **BOLD)
        drawing.text(at + 9, top + 104, "each way", "soft")


def _draw_between(drawing, step, left, right, y):
    """Between the ranks of one place on two hosts, over the network."""
    for place, (name, lane, colour) in enumerate(LANES):
        at, middle = y + 44 + 50 * place, (left + right) / 2
        drawing.arrow([(middle, at), (left + 3, at)], colour, 3)
        drawing.arrow([(middle, at), (right - 3, at)], colour, 3)
        drawing.text(middle, at - 25, name, anchor="middle")
        drawing.text(middle, at - 7, shown_bytes(step[f"host_{lane}_in_bytes"]), anchor="middle", **BOLD)
