"""Evaluator `wavlm_ecapa`."""

from stentor.evaluators.wavlm_ecapa.evaluator import WavLMEcapa

__all__ = ["WavLMEcapa"]
