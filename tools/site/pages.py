"""What the site adds to docs/: its order from the tables of docs/README.md, the reference of the package of Python, and
pictures in the colours that its reader has chosen."""

from __future__ import annotations

import pathlib
import re
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = "reference.md"
# What a reader of the package calls, by the module in which it is.
MEMBERS = {
    "terrace.torch": ["initialize", "Engine", "plan_model", "init", "load", "RankSampler"],
    "terrace.torch.optimizer": ["OffloadAdamW", "OffloadAdam", "OffloadLion", "OffloadSGD", "OffloadAdagrad"],
    "terrace.hf": ["TerraceTrainer", "TerraceMixin"],
    "terrace": ["Store", "plan"],
    "terrace.store.spec": ["Tensor", "Use", "Optimizer", "SimulatedDevice", "CudaDevice", "Plan", "UpdateResult"],
    "terrace.config": ["read_config", "Config"],
    "terrace.ranks": ["Ranks"],
    "terrace.safetensors": [],
    "terrace.errors": [],
}
# As docs/pictures/make has it.
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]*)">\s*'
    r'<img src="(?P<light>[^"]*)" alt="(?P<alt>[^"]*)">\s*</picture>'
)


def on_config(config: Any) -> Any:
    """The sections of docs/README.md with the pages that they name, and behind ranks.md those that its name begins."""
    sections = re.split(r"^## ", (DOCS / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    named = {page: number for number, text in enumerate(sections) for page in re.findall(r"\]\(([a-z0-9_]+\.md)", text)}
    navigation: list[Any] = ["README.md"]
    for number, text in enumerate(sections):
        pages: list[str] = []
        for page in [page for page, section in named.items() if section == number]:
            below = [path.name for path in sorted(DOCS.glob(f"{page[:-3]}_*.md")) if path.name not in named]
            pages += [page, *below]
        navigation.append({text.partition("\n")[0]: pages})
    config["nav"] = [*navigation, {"Python": [REFERENCE]}]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    files.append(File.generated(config, REFERENCE, content=_reference()))
    return files


def _reference() -> str:
    lines = ["# The package of Python", "", "Every name with its arguments, units and errors, from the package itself."]
    for module, members in MEMBERS.items():
        lines += ["", f"## {module}", ""]
        if members:
            lines += [f"::: {module}.{member}\n" for member in members]
        else:
            lines.append(f"::: {module}\n")
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What lies outside of docs/ is not on the site: its name stays, without a link. Of a picture in two colours the theme
    shows that of its switch, where the page leaves it to the system's."""
    markdown = re.sub(r"\[((?:[^\]\[]|\[[^\]]*\])*)\]\(\.\./(?!docs/)[^)]*\)", r"\1", markdown)
    return PICTURE.sub(lambda found: _in_both_colours(**found.groupdict()), markdown)


def _in_both_colours(dark: str, light: str, alt: str) -> str:
    return f"![{alt}]({light}#only-light)\n![{alt}]({dark}#only-dark)"
