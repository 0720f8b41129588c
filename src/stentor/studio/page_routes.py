"""Routes: all of the studio's own, which the server serves beside Gradio."""

from stentor.studio.dataset import receiving, recorder, review
from stentor.studio.runs import live, run_files

ROUTES = [*recorder.ROUTES, *receiving.ROUTES, *review.ROUTES, *run_files.ROUTES, *live.ROUTES]
