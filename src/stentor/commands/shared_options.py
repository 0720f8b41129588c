"""Options that several verbs share."""

DEMO_TASK = "transcribe, words, diarize or speak. Default: detected."
FINISHED_MODEL = "A run folder, an export folder or a Hub id."
LAG = "Seconds subtracted from word times of Whisper models, whose attention is late."
PARTS_PLUGINS = "A Python file with your own sources, models, losses, callbacks."
