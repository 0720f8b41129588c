"""Sums over the alignments of a transducer, for the losses `rnnt` and `tdt`."""
