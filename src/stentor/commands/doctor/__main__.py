"""`python -m stentor.commands.doctor [--json]`: works even where the command line's own packages are missing."""

import sys

from stentor.commands.doctor.doctor import main

sys.exit(main("--json" in sys.argv[1:]))
