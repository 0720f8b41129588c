"""Section `prepare:`: preparation steps that run once before training."""
