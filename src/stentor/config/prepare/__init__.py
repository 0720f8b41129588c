"""Section `prepare:`: what is made of corpora before a run, once."""
