"""Evaluator `wavlm_ecapa`."""

from stentor.inference.evaluators.wavlm_ecapa.evaluator import WavLMEcapa

__all__ = ["WavLMEcapa"]
