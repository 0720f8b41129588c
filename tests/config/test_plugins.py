"""Plug-ins from files and from installed packages, each in a process of its own."""

import pytest

PLUGIN = """\
from typing import Literal

from stentor.losses.base import Loss


class {cls}(Loss):
    \"\"\"A loss from elsewhere.\"\"\"

    type: Literal["{name}"] = "{name}"
    margin: float = 0.5
    \"\"\"How far.\"\"\"

    def sum(self, logits):
        return logits.sum()
"""
RUN = """\
task: transcribe
model: {type: speech_llm, encoder: {from: e}, llm: {from: l}}
data: {train: [{type: jsonl, path: a.jsonl}]}
losses:
  text: {type: far_away, margin: 2}
"""


@pytest.fixture
def config(cli):
    """Runs `stentor config ...`, which may fail; `site` is a folder of installed packages."""
    return lambda *arguments, site=(): cli("config", *arguments, check=False, packages=site)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "my_losses.py").write_text(PLUGIN.format(cls="FarAway", name="far_away"))
    return tmp_path


def test_plugin_file(folder, config):
    assert config("check", "run.yaml").returncode == 2
    done = config("show", "run.yaml", "--plugin", "my_losses.py")
    assert done.returncode == 0 and "margin: 2" in done.stdout
    keys = config("keys", "losses", "--plugin", "my_losses.py")
    assert "losses.NAME[far_away].margin  (number; default 0.5)\n    How far." in keys.stdout
    assert '"Loss.far_away"' in config("schema", "--plugin", "my_losses.py").stdout


def test_installed_plugin(folder, config):
    site = folder / "site"
    about = site / "far_off-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: far-off\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[stentor.plugins]\nfar = far_off\n")
    (site / "far_off.py").write_text(PLUGIN.format(cls="FarAway", name="far_away"))
    done = config("check", "run.yaml", site=[site])
    assert done.returncode == 0, done.stderr
    (site / "far_off.py").write_text("import nowhere_at_all\n")
    done = config("check", "run.yaml", site=[site])
    assert done.returncode == 2
    assert "Cannot load the installed plug-in 'far'" in done.stderr and "far_off.py:1" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.py", None, "gone.py does not exist"),
        ("notes.txt", "x", "notes.txt is not a Python file"),
        ("my-losses.py", "", "needs a file name that can be imported"),
        ("json.py", "", "has the name of another Python module"),
        ("broken.py", "import os\n\ndef f(:\n", "broken.py:3: SyntaxError"),
        ("failing.py", "import os\n\nos.nothing\n", "failing.py:3: AttributeError"),
        ("taken.py", PLUGIN.format(cls="Mine", name="ctc"), "already that of the loss"),
    ],
)
def test_what_goes_wrong_is_said(folder, config, name, text, message):
    path = folder / "plugins" / name
    path.parent.mkdir()
    if text is not None:
        path.write_text(text)
    done = config("check", "run.yaml", "--plugin", f"plugins/{name}")
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_type_is_never_taken_from_the_file(folder, config):
    (folder / "run.yaml").write_text(RUN + "plugin: my_losses.py\n")
    done = config("check", "run.yaml")
    assert done.returncode == 2 and "unknown key 'plugin'" in done.stderr


def test_a_family_must_fit_the_task_and_the_layout(folder, config):
    family = """\
from typing import ClassVar, Literal

from stentor.models.base import Family


class Talker(Family):
    type: Literal["talker"] = "talker"
    tasks: ClassVar[tuple[str, ...]] = ({tasks},)
"""
    (folder / "talker.py").write_text(family.format(tasks='"speak"'))
    (folder / "run.yaml").write_text(
        "task: transcribe\nmodel:\n  type: talker\ndata:\n  train: [{type: jsonl, path: a.jsonl}]\n  layout: packed\n"
    )
    done = config("check", "run.yaml", "--plugin", "talker.py")
    assert done.stderr == "stentor: run.yaml:3: 'model.type': talker supports speak, not transcribe\n"
    (folder / "talker.py").write_text(family.format(tasks='"transcribe"'))
    done = config("check", "run.yaml", "--plugin", "talker.py")
    assert done.stderr == "stentor: run.yaml:6: 'data.layout': a model of type talker needs the layout padded\n"
