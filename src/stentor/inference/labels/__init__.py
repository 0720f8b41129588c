"""Pseudo-labels: the consensus of several hypotheses, how sure it is, and which labels are kept."""
