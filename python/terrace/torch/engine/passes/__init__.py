"""The passes over a model: leases, gradients on their way to the store, and what is read by whom."""

from .passes import Passes

__all__ = ["Passes"]
