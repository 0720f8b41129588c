"""`stentor demo`: a page for one's own model."""

from dataclasses import dataclass
from pathlib import Path

from stentor.cli import app
from stentor.cli.options import MODEL_PLUGINS, Argument, Option, verb


@verb(app, "demo", "stentor.commands.demo:serve")
@dataclass
class DemoOptions:
    """Try a model in the browser, on this machine alone: the page that `stentor publish demo` puts on the Hub."""

    model: str = Argument("Run folder, export folder or Hub id.")
    port: int = Option("Port of 127.0.0.1 to listen on; 0 takes a free one.", 7860, min=0, max=65535)
    title: str | None = Option("Title of the page. Default: the model's name.")
    task: str | None = Option("transcribe, words, diarize or speak. Default: found out.")
    plugin: list[Path] = Option(MODEL_PLUGINS, [])
