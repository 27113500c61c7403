"""Drawings in SVG, in the light and the dark colours of the page of a run.

A drawing is 640 units wide, and its smallest letters are 15 high, so that it can be read on a telephone too. Colours are
named as in runtime/observe/page/parts/report.css, which a Theme reads, and the ground stays transparent.
"""

import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THEMES = ("light", "dark")
WIDTH = 640
# How wide a page shows it that has the room, in pixels.
SHOWN_WIDTH = 720
SMALL, NORMAL = 16, 18
# A letter takes about this part of its height, in the fonts that systems have.
LETTER = 0.57
BOLD = {"font-weight": 600}


class Theme:
    """The colours and the fonts of the page of a run: theme["text"], theme["c-blue"]."""

    def __init__(self, name):
        self.name = name
        css = (ROOT / "runtime/observe/page/parts/report.css").read_text()
        light = re.search(r"^:root \{(.*?)^\}", css, re.S | re.M)[1]
        dark = re.search(r':root\[data-theme="dark"\] \{(.*?)\}', css, re.S)[1]
        self._values = dict(re.findall(r"--([a-z-]+): ([^;]+);", light + (dark if name == "dark" else "")))

    def __getitem__(self, name):
        return self._values[name]

    @property
    def on_series(self):
        """The colour of letters on an area of a series."""
        return "ground" if self.name == "dark" else "text"


def number(value):
    """As an attribute: with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def shown_bytes(count):
    """As the program writes sizes: three digits."""
    size, units = float(count), iter(("bytes", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1000:
        size, unit = size / 1024, next(units)
    return f"{size:.{2 if size < 10 else 1 if size < 100 else 0}f} {unit}" if unit != "bytes" else f"{count} bytes"


class Drawing:
    """Elements of an SVG of `height`, from the top left. Colours are names in the theme."""

    def __init__(self, theme, title, height):
        self.theme = theme
        self._title = title
        self._height = height
        self._lines = []

    def _add(self, name, attributes, content=None):
        written = "".join(
            f' {key.replace("_", "-")}="{escape(number(value))}"'
            for key, value in attributes.items()
            if value is not None
        )
        self._lines.append(f"<{name}{written}/>" if content is None else f"<{name}{written}>{content}</{name}>")

    def rect(self, x, y, width, height, fill=None, edge=None, radius=None, **more):
        fill = self.theme[fill] if fill else "none"
        stroke = self.theme[edge] if edge else None
        self._add("rect", dict(x=x, y=y, width=width, height=height, rx=radius, fill=fill, stroke=stroke, **more))

    def line(self, x1, y1, x2, y2, colour, width=1, dashes=None, **more):
        stroke = dict(stroke=self.theme[colour], stroke_width=width, stroke_dasharray=dashes)
        self._add("line", dict(x1=x1, y1=y1, x2=x2, y2=y2, **stroke, **more))

    def path(self, d, colour=None, width=1, fill=None, **more):
        stroke = dict(stroke=self.theme[colour], stroke_width=width) if colour else {}
        self._add("path", dict(d=d, fill=self.theme[fill] if fill else "none", **stroke, **more))

    def text(self, x, y, words, colour="text", size=SMALL, anchor=None, **more):
        """`y` is where the letters stand; anchor is None, "middle" or "end"."""
        self._add(
            "text",
            dict(x=x, y=y, fill=self.theme[colour], font_size=size, text_anchor=anchor, **more),
            escape(str(words)),
        )

    def arrow(self, points, colour, width=2):
        """A line through the points, with a head at the last one."""
        (x0, y0), (x1, y1) = points[-2:]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        along = ((x1 - x0) / length, (y1 - y0) / length)
        head = 4 + 2 * width
        base = (x1 - head * along[0], y1 - head * along[1])
        side = (-along[1] * head / 2, along[0] * head / 2)
        self.path("M" + " L".join(pair(*point) for point in [*points[:-1], base]), colour, width)
        corners = [(x1, y1), (base[0] + side[0], base[1] + side[1]), (base[0] - side[0], base[1] - side[1])]
        self.path("M" + " L".join(pair(*corner) for corner in corners) + "Z", fill=colour)

    def to_svg(self):
        height = round(self._height * SHOWN_WIDTH / WIDTH)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" role="img" '
            f'width="{SHOWN_WIDTH}" height="{height}" font-family="{escape(self.theme["sans"])}">'
        )
        return "\n".join([head, f"<title>{escape(self._title)}</title>", *self._lines, "</svg>\n"])


def pair(x, y):
    return f"{number(float(x))} {number(float(y))}"


def band(xs, below, above):
    """A path around what lies between two curves that are level between xs[i] and xs[i + 1]."""
    top = _stairs(xs, above)
    bottom = _stairs(xs, below)
    return "M" + " L".join(pair(*point) for point in top + bottom[::-1]) + "Z"


def _stairs(xs, ys):
    points = []
    for i, y in enumerate(ys):
        if i == 0 or y != ys[i - 1]:
            points += [(xs[i], ys[i - 1]), (xs[i], y)] if i else [(xs[0], y)]
    return [*points, (xs[-1], ys[-1])]
