"""Commands of the Voxtral scripts that push a model or a data set, write its card, deploy its demo or open the page."""

import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

from stentor.config.convert.draft import expanded
from stentor.config.convert.shell import Command, Vocabulary, read_options
from stentor.config.document import Mistakes

_CARD = "the card has the run's own settings and results; for other words edit README.md of --dry-run and give --card"
SCRIPTS = {
    "push_to_huggingface.py": _CARD,
    "generate_model_card.py": _CARD,
    "deploy_demo_space.py": "the page is that of the model's task; --title and --card change its words",
    "interface.py": "see `stentor studio --help`",
}
"""The scripts, and why most of their options have no counterpart."""
_VOCABULARY = Vocabulary(
    frozenset(expanded("{private,test,output,repo-name,hf-username,model-id,space-name,skip-creation,token,hf-token}")),
    frozenset(("private", "test", "skip-creation")),
    frozenset(("token", "hf-token")),
)


def published(commands: Iterable[Command], run: str) -> tuple[list[str], list[str]]:
    """`stentor` commands in the place of those of the scripts, and notes for the user. `run`: the folder that training
    writes. Raises `Mistakes`."""
    lines, notes = [], []
    for command in commands:
        options = read_options(command.words, _VOCABULARY)
        if options.mistakes:
            raise Mistakes(options.mistakes)
        values = {key: str(node.value) for key, node in options.values.items()}
        words = [word.name for word in options.others if not word.name.startswith("-")]
        lines.append(_line(command.script, values, words, run))
        if left_out := [word.name for word in options.others if word.name.startswith("-")]:
            notes.append(f"{command.script}: {', '.join(left_out)}: {SCRIPTS[command.script]}.")
        if "token" in values or "hf-token" in values:
            notes.append(f"{command.script}: the token comes from HF_TOKEN or from `hf auth login`.")
    if any(" publish " in line for line in lines):
        notes.append("repositories are private here: add --public for what the scripts do without --private.")
    return lines, notes


def publish_line(kind: str, what: str, to: str, *more: str) -> str:
    """The command that publishes a model, a data set or a demo. USER stands for the user of a repository that has none,
    whom the scripts ask the Hub for."""
    repo = to if "/" in to and "$" not in to else f"USER/{PurePosixPath(to).name}"
    return shlex.join(["stentor", "publish", kind, what, "--to", repo, *more])


def _line(script: str, values: dict[str, str], words: list[str], run: str) -> str:
    if script == "interface.py":
        return "stentor studio"
    if script == "deploy_demo_space.py":
        model = values.get("model-id", run)
        space = values.get("space-name", f"{PurePosixPath(model).name}-demo")
        return publish_line("demo", model, f"{values.get('hf-username', 'USER')}/{space}", "--secret", "HF_TOKEN")
    if script == "generate_model_card.py":
        return publish_line("model", run, values.get("repo-name", "REPO"), "--dry-run", "card")
    kind, what, repo = [*words, *("model", run, "REPO")[len(words) :]][:3]
    dry_run = ["--dry-run", "dataset-on-the-hub"] if values.get("test") == "True" else []
    return publish_line(kind, f"{what},audio_folder=." if kind == "dataset" else what, repo, *dry_run)
