"""`python benchmarks NAME [options]` runs one benchmark; `python benchmarks` lists them."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that modules are found as `benchmarks.NAME`
    from benchmarks.harness import main

    sys.exit(main(sys.argv[1:]))
