"""`python -m stentor` and `accelerate launch -m stentor`."""

from stentor.cli import run

if __name__ == "__main__":
    run()
