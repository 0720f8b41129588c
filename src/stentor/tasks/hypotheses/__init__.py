"""Hypotheses of a training batch: what the model writes, or says, for sequence losses."""
