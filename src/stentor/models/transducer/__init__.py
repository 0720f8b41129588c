"""Family `transducer`."""

from stentor.models.transducer.config import TransducerFamily

__all__ = ["TransducerFamily"]
