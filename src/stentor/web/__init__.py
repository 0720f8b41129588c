"""Shared parts of the model server and the studio: addresses and origins, secrets, bodies of requests."""
