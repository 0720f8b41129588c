"""Export as a web page: the graphs of `--format onnx`, onnxruntime-web, and a page that runs them in the browser."""

from __future__ import annotations

import functools
import hashlib
import html
import importlib.metadata
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stentor.data.batch import Example
from stentor.errors import ConfigError, StentorError
from stentor.export.onnx.exporter import GraphExporter
from stentor.export.table import exporter_of
from stentor.export.web.runtime import VERSION, write_runtime
from stentor.export.whisper import token_bytes
from stentor.inference.model import Model
from stentor.models.base import ONNX_CONFIG, Bundle
from stentor.models.pretrained.weights import read_json

PAGE = Path(__file__).parent / "page"
CHECK = Path(__file__).parent / "check.mjs"
MODEL = "model"
LISTING = "files.json"
"""Title, version and files of a page, with size and SHA-256."""
OLDEST_NODE = 18
CHECKED = 16
"""Tokens in each of the texts by which the pieces are compared with the tokenizer."""
TOOK_LONG = 3600
"""Seconds after which the check in Node has failed."""
USAGE = f"""\
This folder is a page that transcribes files and the microphone in the browser, on the device. Serve it with any static
web server, under https:// or on localhost (browsers give the microphone to no other pages):

```bash
python -m http.server --directory {{folder}} 8000
```

Open http://localhost:8000. After the first visit the page works without a network. `stentor publish demo MODEL --static
--to USER/NAME` publishes such a page as a Space.

`model/` holds the graphs of `--format onnx`, `ort/` onnxruntime-web {VERSION} (MIT licence, Microsoft; WebAssembly, one
thread). Where Node is installed, the comparison runs the page's own scripts with onnxruntime-web in Node; otherwise it
runs the same graphs in onnxruntime. The real-time factor in a browser is shown on the page.
"""


class WebPage(GraphExporter):
    """A static folder with a page that recognises speech."""

    runtime = "onnxruntime-web"
    keeps_facts = False
    usage = USAGE

    def ran_in(self) -> str:
        if (node := node_version()) is not None:
            return f"onnxruntime-web {VERSION} in Node {node}"
        return f"onnxruntime {importlib.metadata.version('onnxruntime')} (the page's graphs, without Node)"

    def refusal(self, bundle: Bundle) -> str | None:
        try:
            exporter_of("onnx", bundle)
        except ConfigError as error:
            return str(error).partition(". ")[0].removeprefix("--format onnx: ")
        return None

    def write_graphs(self, model: Model, folder: Path) -> None:
        write_runtime(folder / "ort", self.package)
        (folder / MODEL).mkdir()
        self.graphs = tempfile.TemporaryDirectory(prefix="stentor-web-")
        graphs = Path(self.graphs.name)
        exporter_of("onnx", model.bundle).write(model, graphs)
        config = read_json(graphs / ONNX_CONFIG)
        names = [graph["file"] for graph in config["graphs"].values()]
        for file in [graphs / ONNX_CONFIG, *(file for name in names for file in graphs.glob(f"{name}*"))]:
            shutil.copyfile(file, folder / MODEL / file.name)
        units = config.get("units")
        said = pieces(model.bundle.processor) if units is None else [u.encode().decode("latin-1") for u in units]
        (folder / MODEL / "pieces.json").write_text(json.dumps(said), encoding="utf-8")
        write_page(folder, title_of(model))

    def quantize(self, model: Model, float_folder: Path, folder: Path, quantization: str) -> None:
        super().quantize(model, float_folder, folder, quantization)
        write_page(folder, title_of(model))

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        if node_version() is not None:
            return run_in_node(folder, model.bundle.processor, examples)
        shutil.copytree(folder / MODEL, self.graphs.name, dirs_exist_ok=True)  # beside the program that runs them
        return exporter_of("onnx", model.bundle).run(Path(self.graphs.name), model, examples)


def title_of(model: Model) -> str:
    """Title of a model's page."""
    return str(model.training.get("name") or "Speech recognition")


def write_page(folder: Path, title: str) -> None:
    """Write the page into a folder with `model/` and `ort/`; again, to give it another title."""
    whole = {"title": html.escape(title), "runtime": VERSION}
    small = [file.name for file in PAGE.iterdir() if file.name != "sw.js"]
    for name in small:
        text = (PAGE / name).read_text(encoding="utf-8")
        for key, value in whole.items():
            text = text.replace(f"{{{{ {key} }}}}", value) if name.endswith(".html") else text
        (folder / name).write_text(text, encoding="utf-8")
    parts = sorted(path for part in (MODEL, "ort") for path in (folder / part).iterdir())
    large = [path.relative_to(folder).as_posix() for path in parts if path.suffix != ".mjs"]
    small = [*small, *(path.relative_to(folder).as_posix() for path in parts if path.suffix == ".mjs")]
    listed = {name: {"size": (folder / name).stat().st_size, "sha256": _digest(folder / name)} for name in large}
    told = [title, listed, {name: _digest(folder / name) for name in sorted([*small, *large])}]
    version = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
    listing = {"title": title, "version": version, "files": listed}
    (folder / LISTING).write_text(json.dumps(listing, indent=1) + "\n", encoding="utf-8")
    worker = (PAGE / "sw.js").read_text(encoding="utf-8").replace("{{ version }}", version)
    stored = json.dumps(["./", *sorted(small), LISTING])
    (folder / "sw.js").write_text(worker.replace("{{ page }}", stored), encoding="utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def node_version() -> str | None:
    """Version of Node; None without one that runs the check."""
    if (command := shutil.which("node")) is None:
        return None
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    version = answer.stdout.strip().removeprefix("v")
    major = version.partition(".")[0]
    return version if major.isdigit() and int(major) >= OLDEST_NODE else None


def run_in_node(folder: Path, processor: Any, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """`text` and `words` of clips by the scripts of an exported page with onnxruntime-web in Node. Raises StentorError
    with Node's message when it fails."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="stentor-web-") as place:
        clips = []
        for i, example in enumerate(examples):
            assert example.audio is not None
            file = Path(place) / f"{i}.f32"
            file.write_bytes(np.asarray(example.audio, "<f4").tobytes())
            clips.append({"file": str(file), "language": example.language})
        listing = Path(place) / "clips.json"
        listing.write_text(json.dumps(clips), encoding="utf-8")
        command = ["node", str(CHECK), str(folder.resolve()), str(listing)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOK_LONG, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line] or done.stderr.splitlines()[-1:]
        raise StentorError(f"The page's scripts fail in Node: {' '.join(lines[:1])}. Please report this.")
    outputs: list[dict[str, Any]] = json.loads(done.stdout)
    return outputs


def pieces(processor: Any) -> list[str]:
    """Bytes of the UTF-8 of each token id's text, a character (U+0000 to U+00FF) for each byte; "" for control tokens.

    What they write together, without white space around it, is the text. Raises ConfigError for a tokenizer that writes
    texts in another way.
    """
    tokenizer = processor.tokenizer
    added = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    texts = token_bytes(tokenizer) | {i: processor.decode([i]).encode() for i in added}
    ids = sorted(texts)
    written = [i for i in ids if texts[i]]
    for first in range(0, len(written), CHECKED):
        some = written[first : first + CHECKED]
        if b"".join(texts[i] for i in some).decode(errors="replace").strip() != processor.decode(some).strip():
            raise ConfigError(
                f"The page does not know how the tokenizer {type(tokenizer).__name__} writes texts (token "
                f"{tokenizer.convert_ids_to_tokens(some[0])!r} and those after it): use --format onnx."
            )
    return [texts.get(i, b"").decode("latin-1") for i in range(max(ids, default=-1) + 1)]
