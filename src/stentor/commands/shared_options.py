"""Options that several verbs share."""

DEMO_TASK = "transcribe, words, diarize or speak. Default: found out."
FINISHED_MODEL = "A run folder, an export folder or a Hub id."
LAG = "Seconds that a Whisper model's attention is late, taken off its times."
PARTS_PLUGINS = "A Python file with your own sources, models, losses, callbacks."
