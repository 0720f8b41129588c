"""Documentation site: every page is in the navigation, the generated pages are complete, and nothing asks another host.

Without the packages of `stentor[docs]` only the navigation is checked."""

import html
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import stentor
import stentor.extend
from stentor.cli import build

ROOT = Path(__file__).parents[2]
GENERATED = {"keys.md", "commands.md", "api.md", "api-extend.md", "contributing.md", "changelog.md"}
MISSING = [name for name in ("mkdocs", "material", "mkdocstrings_handlers") if find_spec(name) is None]
REASON = "The site cannot be built: its packages are not installed. Install stentor[docs]."


def needs_packages(test):
    return pytest.mark.long(pytest.mark.skipif(bool(MISSING), reason=REASON)(test))


def pages_in(nav: object) -> list[str]:
    """Pages of a part of the navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_in(part)]


def test_navigation_has_every_page_once():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(re.search(r"^nav:\n(?:[ ].*\n)+", text, re.M)[0])["nav"]
    assert sorted(pages_in(nav)) == sorted({path.name for path in (ROOT / "docs").glob("*.md")} | GENERATED)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site: a warning, such as of a broken link, raises."""
    from mkdocs.commands import build as mkdocs
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GITHUB_REPOSITORY", "someone/stentor")  # as in a workflow
        mkdocs.build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def article(site: Path, page: str) -> str:
    """HTML of the text of a page."""
    return re.search(r"<article.*?</article>", (site / page / "index.html").read_text(encoding="utf-8"), re.S)[0]


@needs_packages
@pytest.mark.parametrize(
    ("page", "module"), [("api", stentor), ("api-extend", stentor.extend)], ids=["stentor", "extend"]
)
def test_api_pages_have_the_public_names_and_no_others(site, page, module):
    names = re.findall(r'<h3 id="([\w.]+)" class="doc doc-heading">', article(site, page))
    assert sorted(names) == sorted(f"{module.__name__}.{name}" for name in module.__all__)
    assert "Option(" not in article(site, page)  # declared options show their defaults


@needs_packages
def test_key_page_has_every_key(site):
    text = article(site, "keys")
    rows = set(re.findall(r"<tr>\s*<td><code>([^<]+)</code></td>", text))
    program = "from stentor.config.reference import keys\nfor key, *_ in keys(): print(key)"  # without tests' plug-ins
    for key in subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split():
        kinds = re.findall(r"\[(\w+)\]", key)
        assert key.split(".")[-1] in rows and all(f"with <code>type: {kind}</code>" in text for kind in kinds), key


@needs_packages
def test_command_page_has_every_verb_with_its_options(site):
    _, *parts = re.split(r"<h2 id=.*?><code>(.*?)</code>", article(site, "commands"))
    sections = dict(zip(parts[::2], parts[1::2]))
    commands = {"stentor": build()}
    while commands:
        name, command = commands.popitem()
        section = html.unescape(sections.pop(name))
        shown = [f"<td><code>{param.opts[0]}" for param in command.params if param.param_type_name == "option"]
        assert not [flag for flag in shown if flag not in section and "--help" not in flag], name
        commands |= {f"{name} {verb.name}": verb for verb in getattr(command, "commands", {}).values()}
    assert not sections


@needs_packages
def test_nothing_is_asked_of_another_host(site):
    loads = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^>]*>")
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not [tag for tag in loads.findall(text) if 'rel="canonical"' not in tag], path
        assert 'data-md-component="source"' not in text, "the theme would ask GitHub for stars"
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")), path


@needs_packages
def test_links_that_leave_docs_lead_to_the_repository(site):
    text = article(site, "extend")
    assert re.search(r'href="https?://[^"]+/edit/main/docs/extend.md"', text), "a page can be edited"
    assert re.search(r'href="https?://[^"]+/blob/main/examples/plugin/gru_ctc.py"', text)
    assert re.search(r'href="https?://[^"]+/tree/main/examples/\w+"', text) and 'href="../../' not in text
    assert 'href="../keys/"' in article(site, "data")


@needs_packages
def test_markdown_is_read_as_on_github(site):
    """A list or table is one: GitHub needs no empty line before it, the site does."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not (left := re.search(r"<p>(?:(?!</p>)[\s\S])*?\n(?:[*|] |1\. ).*", text)), f"{path}: {left[0]}"


@needs_packages
def test_search_finds_every_page(site):
    found = {
        doc["location"].split("/")[0] for doc in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    assert found >= {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}


@needs_packages
def test_faults_of_a_page_are_named(tmp_path, caplog):
    from mkdocs.commands import build as mkdocs
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "new.md").write_text("# New\n\n[a](gone.md) [b](../src/gone.py) [c](keys.md#gone) [d](../recipes)\n")
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(docs),
        site_dir=str(tmp_path / "site"),
        nav=["keys.md"],
        plugins=["search"],
    )
    with pytest.raises(Abort, match="strict"):
        mkdocs.build(config)
    for fault in ("  - new.md\n", "'gone.md'", "src/gone.py, which does not exist", "'#gone'"):
        assert fault in caplog.text + "\n", fault
    assert "recipes" not in caplog.text
