"""All routes of the studio's own, which the Door serves beside Gradio."""

from __future__ import annotations

from stentor.studio import receiving, recorder, review, run_files

ROUTES = [*recorder.ROUTES, *receiving.ROUTES, *review.ROUTES, *run_files.ROUTES]
