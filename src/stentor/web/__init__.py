"""What the server of models and the studio share: addresses and origins, secrets, bodies of requests."""
