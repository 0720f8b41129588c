"""Hypotheses of a training batch, texts or utterances that the model generates for sequence losses."""
