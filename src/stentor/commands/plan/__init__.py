"""Plan of a run (`stentor train --plan-only`): parameters, data, memory, time and settings to start from."""
