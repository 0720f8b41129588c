"""Codec `mel_rvq`."""

from stentor.models.codecs.mel_rvq.config import MelRVQ

__all__ = ["MelRVQ"]
