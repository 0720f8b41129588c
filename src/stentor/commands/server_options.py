"""Options of verbs that listen at a port: `stentor serve`, `stentor studio` and `stentor demo`."""

from dataclasses import dataclass
from pathlib import Path

from stentor.commands.shared_options import DEMO_TASK
from stentor.inference.declarations import Argument, Flag, Option, verb
from stentor.inference.options import VAD
from stentor.pipeline.options import DEVICE, MODEL_PLUGINS


@verb("serve", "stentor.serve.run:serve")
@dataclass(kw_only=True)
class ServeOptions:
    """Serve models with OpenAI's audio API: transcriptions, speech, diarization and alignment."""

    models: list[str] = Argument("Run folders, export folders or Hub ids.", [])
    name: list[str] = Option("ALIAS=RUN: additional name of a model for clients. May be repeated.", [])
    diarizer: str | None = Option("Model for speaker diarization, for diarized_json.")
    host: str = Option("Address to listen on. Other addresses than 127.0.0.1 need --api-key-env.", "127.0.0.1")
    port: int = Option("Port to listen on; 0 takes a free one.", 8000, min=0, max=65535)
    api_key_env: str | None = Option("Name of the environment variable that holds the keys, with spaces between them.")
    allow_origin: list[str] = Option("Origin of web pages that may send requests, or *. May be repeated.", [])
    device: list[str] = Option(f"{DEVICE} May be repeated: each model is then on each, and they share the work.", [])
    batch_seconds: float | None = Option("Most seconds of audio in a batch (default 120).", min=1.0)
    vad: str = Option(VAD, "energy")
    max_upload_mb: int = Option("Largest upload, in MiB.", 1024, min=1)
    max_minutes: float = Option("Longest recording, in minutes.", 240.0, min=0.1)
    max_characters: int = Option("Longest text to speak, in characters.", 4096, min=1)
    max_requests: int = Option(
        "Requests that may wait or run at the same time; further ones are refused with 429.", 256, min=1
    )
    max_requests_per_key: int | None = Option("The same for each key.", min=1)
    fifo: bool = Flag("Serve requests in order of arrival, instead of in turns per client.")
    ray: str | None = Option(
        "Serve on a Ray cluster, by Ray Serve: auto (the one that runs here, or one for this command) or HOST:PORT."
    )
    max_replicas: int | None = Option(
        "With --ray: most copies of the server; Ray starts them by load (8).", min=1, needs="ray"
    )
    gpus_per_worker: float | None = Option(
        "With --ray: GPUs of each copy, such as 0.25 (1, or 0 without).", min=0.0, needs="ray"
    )
    plugin: list[Path] = Option(MODEL_PLUGINS, [], local=True)


@verb("studio", "stentor.studio.serve:serve")
@dataclass(kw_only=True)
class StudioOptions:
    """Open the studio: record, check, train, try and publish in the browser."""

    host: str = Option("Address to listen on. Other addresses than 127.0.0.1 need a password.", "127.0.0.1")
    port: int = Option("Port to listen on; 0 takes a free one.", 7860, min=0, max=65535)
    folder: Path = Option("Folder of data sets and runs (created if missing).", Path("studio"))
    password_env: str | None = Option(
        "Name of the environment variable that holds the password, or NAME:PASSWORD for each person: each then has "
        "projects of their own."
    )
    models: list[Path] = Option("Folder with models that signed-in users may train from. May be repeated.", [])
    runs: list[Path] = Option("Folder with more runs of `stentor train` to show. May be repeated.", [])
    publish: bool = Flag("Allow named users to publish with this machine's Hub login.")


@verb("demo", "stentor.commands.demo:serve")
@dataclass(kw_only=True)
class DemoOptions:
    """Try a model in the browser on this machine: the page that `stentor publish demo` puts on the Hub."""

    model: str = Argument("Run folder, export folder or Hub id.")
    port: int = Option("Port of 127.0.0.1 to listen on; 0 takes a free one.", 7860, min=0, max=65535)
    title: str | None = Option("Title of the page. Default: the model's name.")
    task: str | None = Option(DEMO_TASK)
    plugin: list[Path] = Option(MODEL_PLUGINS, [], local=True)
