"""Family `seq2seq`."""

from stentor.models.seq2seq.config import Seq2Seq

__all__ = ["Seq2Seq"]
