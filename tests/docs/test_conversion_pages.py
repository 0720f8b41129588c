"""docs/from-omnivoice.md, from-universal.md and from-voxtral.md leave out no key, and name only what there is."""

import re
import shlex
from dataclasses import dataclass

import pytest

from conversion_page import KEY, columns, is_unknown, mistakes, rows, text_of
from stentor.cli import build
from stentor.config.convert import omnivoice, universal, voxtral


@dataclass
class Page:
    """A page about a converter: a run file of ours that has every section it names, and keys that do not exist."""

    title: str
    converter: object
    empty: tuple[str, str]
    run: str
    wrong: tuple[str, ...]
    some: tuple[str, ...]

    def __post_init__(self):
        self.text = text_of(f"from-{self.title.lower()}.md")
        self.rows = rows(self.text, self.title)
        self.left, self.right = columns(self.text, self.title)

    def known(self, folder) -> set[str]:
        """Keys that are converted."""
        name, text = self.empty
        (folder / name).write_text(text)
        return set(self.converter.convert(folder / name).known)

    def overrides(self) -> list[str]:
        keys = {text.split()[0] for text in self.right if re.fullmatch(KEY, text.split()[0])}
        given = {text.replace(": ", "=", 1) for text in self.right if "callbacks: " in text}
        return sorted({f"{key}=null" for key in keys if not key.endswith(".lst")} | given)


OMNIVOICE = Page(
    "OmniVoice",
    omnivoice,
    ("empty.json", "{}"),
    """\
task: {type: speak}
model: {type: omnivoice, llm: {from: Qwen/Qwen3-0.6B}, lora: {}}
data: {train: [{type: shards, path: data.lst}], eval: {dev: {type: shards, path: dev.lst}}}
losses: {codes: codebook}
""",
    ("optim.learning", "task.mask_ratio", "model.lora.r"),
    ("losses.codes.weights", "model.entries"),
)
UNIVERSAL = Page(
    "universal",
    universal,
    ("empty.yaml", "training: {epochs: 1}"),
    """\
task: {type: diarize}
model: {type: transformer, encoder: {d_model: 32}}
data: {train: [{type: corpus, name: ami}], eval: {dev: {type: corpus, name: ami}}}
losses: {speakers: pit_bce, norm_reg: weight_reg}
""",
    ("optim.learning", "losses.speakers.smoothing", "model.features.mels"),
    ("losses.speakers.label_smoothing",),
)


VOXTRAL = Page(
    "Voxtral",
    voxtral,
    ("train.sh", "python train.py"),
    """\
task: {type: transcribe}
model: {type: audio_llm, from: x, lora: {}}
data: {train: [{type: jsonl, path: a.jsonl}], eval: {dev: {type: jsonl, path: a.jsonl}}}
losses: {text: cross_entropy}
callbacks: [{type: tracking, trackio: {project: p}}]
""",
    ("optim.learning", "data.train.0.audio_root", "train.keep_last"),
    ("losses.text.label_smoothing", "data.train.0.audio_folder"),
)


@pytest.fixture(params=[OMNIVOICE, UNIVERSAL, VOXTRAL], ids=lambda page: page.title)
def page(request) -> Page:
    return request.param


def test_every_row_has_an_answer(page):
    assert len(page.rows) > 50 and all(row[1].strip() for row in page.rows)


def test_every_field_of_omnivoice_is_told(tmp_path):
    known = OMNIVOICE.known(tmp_path)
    assert len(known) > 40
    assert {*known, *omnivoice._ENTRY, "train", "dev"} <= {name.split()[0] for name in OMNIVOICE.left}


def test_every_key_of_the_universal_pipeline_is_told(tmp_path):
    """By its own name, its last two or last parts, or by the section it stands in."""
    known = UNIVERSAL.known(tmp_path)
    assert len(known) > 150
    for key in known:
        parts = key.split(".")
        names = {".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}
        assert names & {*UNIVERSAL.left}, key


def test_every_option_of_the_voxtral_scripts_is_told():
    assert {*voxtral.OPTIONS.known} <= {name.lstrip("-") for name in VOXTRAL.left}


def test_every_key_that_is_named_exists(page, tmp_path):
    """Null may be a wrong value, but not of an unknown key. Keys that do not exist would be noticed."""
    (tmp_path / "run.yaml").write_text(page.run)
    overrides = page.overrides()
    assert len(overrides) > 40 and {f"{key}=null" for key in page.some} <= {*overrides}
    for override in overrides:
        message = mistakes(tmp_path / "run.yaml", override)
        elsewhere = "is a key of type 'transcribe'" in message  # as the page says of `task.beams`
        assert elsewhere or not is_unknown(message), message
        assert not message or override.endswith("=null"), message
    for wrong in page.wrong:
        assert "unknown key" in mistakes(tmp_path / "run.yaml", f"{wrong}=null")


def test_every_option_that_is_named_exists():
    def options(*verbs: str) -> set[str]:
        command = build()
        for verb in verbs:
            command = command.commands[verb]
        return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}

    known = options("prepare", "tokens") | options("train") | options("evaluate") | options("speak") | options("demo")
    known |= options("config", "convert", "omnivoice") | {"--logdir", "--resume-from"}
    named = {option for text in OMNIVOICE.right for option in re.findall(r"--[a-z-]+", text)}
    assert len(named) > 15 and not named - known
    known = options("train") | options("export") | options("studio")
    known |= {option for kind in ("model", "dataset", "demo") for option in options("publish", kind)}
    named = {option for text in VOXTRAL.right for option in re.findall(r"--[a-z-]+", text)}
    assert len(named) > 10 and not named - known - {"--resume-from", "--eval-steps"}


def test_the_commands_are_named_as_the_conversion_names_files(tmp_path):
    (tmp_path / "full_experiment.yml").write_text("model: {model_type: encoder_decoder, name: speech_translator}\n")
    name = universal.convert(tmp_path / "full_experiment.yml").name
    [block] = re.findall(r"```sh\n(.*?)```", UNIVERSAL.text, re.S)
    lines = [shlex.split(line) for line in block.splitlines()]
    assert all(line[2] == f"runs.d/{name}.yaml" for line in lines if line[1] == "train")
