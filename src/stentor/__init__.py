"""Stentor: one training pipeline for speech models."""

__version__ = "0.1.0"
