"""Evaluator `utmos`."""

from stentor.evaluators.utmos.evaluator import Utmos

__all__ = ["Utmos"]
