"""Family `transformer`."""

from stentor.models.transformer.config import Transformer

__all__ = ["Transformer"]
