"""Options of `stentor publish ...`: a model, a data set or a demo on the Hugging Face Hub."""

from dataclasses import dataclass
from pathlib import Path

from stentor.commands.shared_options import DEMO_TASK
from stentor.inference.declarations import Argument, Flag, Option, verb, verb_group

PUBLISH = verb_group(
    "publish",
    "Put a model, a data set or a demo on the Hugging Face Hub. The token comes from HF_TOKEN or the Hub's own login "
    "(`hf auth login`). After a broken connection the same command resumes.",
)
CARD = "Your README.md instead of the generated one."


@dataclass(kw_only=True)
class PublishOptions:
    """Shared by the three verbs."""

    to: str | None = Option("Repository on the Hub: USER/REPO. Made when there is none.")
    private: bool | None = Option(
        "Visibility. Default: private; --public is visible to everyone.", flags="--private/--public"
    )
    dry_run: Path | None = Option("Write everything that would be sent into this folder; send nothing.", output=True)
    message: str | None = Option("First line of the commit.")


@dataclass(kw_only=True)
class LicensedOptions(PublishOptions):
    """Shared by models and data sets."""

    license: str | None = Option("The licence, as the Hub spells it: apache-2.0, cc-by-4.0, cc0-1.0 ...")
    card: Path | None = Option(CARD, local=True)


@verb("model", "stentor.commands.publish:publish_model", PUBLISH)
@dataclass(kw_only=True)
class PublishModelOptions(LicensedOptions):
    """Publish a model with its card: results, usage, limits, licences and how to repeat it."""

    model: str = Argument("Run folder or export folder.")
    merge: bool = Flag("The whole model, with adapters folded in: it needs no base.")


@verb("dataset", "stentor.commands.publish:publish_dataset", PUBLISH)
@dataclass(kw_only=True)
class PublishDatasetOptions(LicensedOptions):
    """Publish a data set: audio and transcripts as the Hub's viewer plays them, with a data card."""

    data: list[str] = Argument(
        "Manifests, or SPLIT=MANIFEST such as test=test.jsonl; a folder with one. MANIFEST,audio_folder=DIR: its paths "
        "start from DIR."
    )
    name: str | None = Option("Title of its card. Default: the repository's name.")
    flac: bool = Flag("All audio as FLAC. Without: files as they are, parts of files as FLAC.")


@verb("demo", "stentor.commands.publish:publish_demo", PUBLISH)
@dataclass(kw_only=True)
class PublishDemoOptions(PublishOptions):
    """Publish a demo of a model as a Gradio Space, or as a page that runs in the visitor's browser (`--static`)."""

    model: str = Argument("Run folder, export folder or Hub id.")
    title: str | None = Option("Title of its page. Default: the model's name.")
    task: str | None = Option(DEMO_TASK)
    hardware: str = Option("The Hub's name of the machine it is made for.", "cpu-basic")
    secret: list[str] = Option(
        "Name of an environment variable that becomes a secret of the Space. May be repeated.", []
    )
    static: bool = Flag("A static Space: the page of `stentor export --format web`, which needs no machine.")
    runtime: Path | None = Option("For --static: a copy of onnxruntime-web, as in `stentor export`.", local=True)
    card: Path | None = Option(CARD, local=True)
