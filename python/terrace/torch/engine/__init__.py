"""The engine over a model of torch, and terrace.initialize, which makes it. It may use torch/optimizer; that knows nothing
of an engine."""

from .engine import Engine
from .initialize import SMALL_ELEMENTS, initialize

__all__ = ["SMALL_ELEMENTS", "Engine", "initialize"]
