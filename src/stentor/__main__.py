"""`python -m stentor` and `accelerate launch -m stentor`."""

from stentor.engine.signals import stop_at_once


def main() -> None:
    stop_at_once()
    from stentor.cli import run

    run()


if __name__ == "__main__":
    main()
