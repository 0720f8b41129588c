"""`stentor evaluate`, a module for each way of scoring; see `stentor.commands.evaluate_options`."""
