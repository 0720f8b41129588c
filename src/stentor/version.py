"""Version of Stentor, and of what it writes."""

__version__ = "0.1.0"

EXPORT_FORMAT = 1
"""Layout of export folders."""
CHECKPOINT_FORMAT = 1
"""Layout of checkpoints and run folders."""
