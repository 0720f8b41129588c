"""What the tests of /v1/realtime share: a small model that hears chunk by chunk, its audio, and a raw client."""

import base64
import contextlib
import json
from pathlib import Path

import numpy as np

RATE = 24000
SHORT = 30
"""Seconds after which a test does not wait any more."""


def streaming_model(folder: Path) -> Path:
    """The export of an untrained CTC model with chunk masks, of which every letter may come."""
    import torch

    from stentor.models.transformer import Transformer
    from stentor.models.transformer.build import assemble, finish, processor_for

    torch.manual_seed(0)
    features = {"normalize": "fixed", "stack": 4, "subsample": 4, "num_mel_bins": 40}
    layers = {"d_model": 32, "layers": 2, "conv_kernel": 5}
    family = Transformer.model_validate({"kind": "encoder", "streaming": {}, "features": features, "encoder": layers})
    bundle = finish(assemble(family, processor_for(family, None, " abcd"), None), False)
    torch.nn.init.normal_(bundle.model.ctc_head.weight, std=2.0)
    folder.mkdir()
    family.save(bundle, {name: t.detach().clone() for name, t in bundle.model.state_dict().items()}, folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "transcribe"}}))
    return folder


def speech(seconds: float, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """Noise that swells and fades as syllables do, of 16 bits."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.1, len(time)) * (0.55 - 0.45 * np.cos(2 * np.pi * 4 * time))
    return (noise.clip(-1, 1) * 32767).astype("<i2")


def silence(seconds: float, rate: int = RATE) -> np.ndarray:
    return np.zeros(round(seconds * rate), "<i2")


def encoded(audio: np.ndarray | bytes) -> str:
    return base64.b64encode(audio if isinstance(audio, bytes) else audio.tobytes()).decode()


class Client:
    """A session over a bare socket."""

    def __init__(self, server, query: str = "model=model", key: str | None = None, **options):
        from websockets.sync.client import connect

        headers = {"authorization": f"Bearer {key}"} if key else {}
        url = f"{server.url.replace('http', 'ws')}/v1/realtime?{query}"
        self.socket = connect(url, additional_headers=headers, open_timeout=SHORT, compression=None, **options)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(Exception):
            self.socket.close()

    def send(self, kind: str, **fields: object) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def configure(self, **fields: object) -> None:
        self.send("session.update", session={"type": "transcription", "audio": {"input": fields}})

    def append(self, audio: np.ndarray | bytes, pieces: int = 1) -> None:
        for part in (
            np.array_split(np.frombuffer(audio, np.uint8), pieces)
            if isinstance(audio, bytes)
            else (np.array_split(audio, pieces))
        ):
            self.send("input_audio_buffer.append", audio=encoded(part))

    def commit(self) -> None:
        self.send("input_audio_buffer.commit")

    def events(self, until: str) -> list[dict]:
        """Events up to the first whose type ends so."""
        events = []
        while not events or not events[-1]["type"].endswith(until):
            events.append(json.loads(self.socket.recv(timeout=SHORT)))
        return events


def words_of(events: list[dict]) -> list[dict]:
    return [word for event in events if event["type"].endswith(".delta") for word in event["words"]]


def text_of(events: list[dict]) -> str:
    return "".join(event["delta"] for event in events if event["type"].endswith(".delta"))
