"""What the tests of /v1/realtime share: a small model that hears chunk by chunk, its audio, and a raw client."""

import base64
import contextlib
import json
import threading
import time
from pathlib import Path

import numpy as np

RATE = 24000
SHORT = 30
"""Seconds after which a test does not wait any more."""


def streaming_model(folder: Path) -> Path:
    """The export of an untrained CTC model with chunk masks, that hears each of its letters about as often."""
    import torch

    from stentor.models.transformer.build import assemble, finish, processor_for
    from stentor.models.transformer.config import Transformer

    torch.manual_seed(0)
    features = {"normalize": "fixed", "stack": 4, "subsample": 4, "num_mel_bins": 40, "high_freq": 3600}
    layers = {"d_model": 32, "layers": 2, "conv_kernel": 5}
    family = Transformer.model_validate({"kind": "encoder", "streaming": {}, "features": features, "encoder": layers})
    bundle = finish(assemble(family, processor_for(family, None, " abcd"), None), False)
    head, features = bundle.model.ctc_head, bundle.processor.features
    torch.nn.init.normal_(head.weight, std=2.0)
    audio = speech(8.0, features.sampling_rate, 1).astype("f4") / 2**15
    frames = torch.from_numpy(features.joined(features.normalized(features.raw(audio))))[None]
    with torch.no_grad():
        hidden, _ = bundle.model.encode(frames, torch.tensor([frames.shape[1]]))
        head.bias -= head(hidden)[0].mean(0)
    folder.mkdir()
    family.save(bundle, {name: t.detach().clone() for name, t in bundle.model.state_dict().items()}, folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "transcribe"}}))
    return folder


def speech(seconds: float, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """Tones in noise that swell and fade as syllables do, of 16 bits."""
    random, at = np.random.default_rng(seed), np.arange(round(seconds * rate)) / rate
    pitch = np.repeat(random.uniform(150, 3000, 1 + len(at) * 5 // rate), rate // 5)[: len(at)]
    tone = np.sin(2 * np.pi * np.cumsum(pitch) / rate) + random.normal(0, 0.3, len(at))
    audio = 0.2 * tone * (0.55 - 0.45 * np.cos(2 * np.pi * 4 * at))
    return (audio.clip(-1, 1) * 32767).astype("<i2")


def silence(seconds: float, rate: int = RATE) -> np.ndarray:
    return np.zeros(round(seconds * rate), "<i2")


def encoded(audio: np.ndarray | bytes) -> str:
    return base64.b64encode(audio if isinstance(audio, bytes) else audio.tobytes()).decode()


def until(condition) -> None:
    """Waits for what another thread or process does."""
    end, pause = time.monotonic() + SHORT, threading.Event()
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        pause.wait(0.01)


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
        data = audio if isinstance(audio, bytes) else audio.tobytes()
        size = -(-len(data) // (2 * pieces)) * 2
        for i in range(0, len(data), size):
            self.send("input_audio_buffer.append", audio=encoded(data[i : i + size]))

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
