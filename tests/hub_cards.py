"""What the Hub checks in the front matter of a README.md before it takes a commit (POST /api/validate-yaml).

The checks are those that the Hub's documentation states (hub/model-cards, hub/datasets-cards,
hub/spaces-config-reference and hub/repositories-licenses); the real one knows more, such as the list of languages.
"""

import re

import yaml

COLORS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
SDKS = ("gradio", "streamlit", "docker", "static")
# fmt: off
LICENSES = frozenset("""
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0
    cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0
    cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
    cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl
    gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr
    mpl-2.0 odc-by odbl openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr
    deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4
    grok2-community gemma unknown other
""".split())  # noqa: SIM905
# fmt: on


def front_matter(content: str) -> str | None:
    """The YAML between the first two lines `---`."""
    match = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*$", content, re.DOTALL | re.MULTILINE)
    return match.group(1) if match else None


def card_facts(content: str) -> dict:
    """What a card that was taken says of its repository."""
    return yaml.safe_load(front_matter(content) or "") or {}


def card_faults(content: str, kind: str) -> tuple[list[str], list[str]]:
    """(errors, warnings) of a card; `kind` is model, dataset or space."""
    text = front_matter(content)
    if text is None:
        missing = "empty or missing yaml metadata in repo card"
        return ([missing], []) if kind == "space" else ([], [missing])
    try:
        facts = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        return [f"bad metadata: {error}"], []
    if not isinstance(facts, dict):
        return ["metadata must be an object"], []
    errors = _common_faults(facts)
    if kind == "space":
        errors += _space_faults(facts)
    if kind == "model":
        errors += _results_faults(facts)
    return errors, []


def _common_faults(facts: dict) -> list[str]:
    errors = []
    licenses = facts.get("license", [])
    for name in licenses if isinstance(licenses, list) else [licenses]:
        if name not in LICENSES:
            errors.append(f'"license" must be one of the identifiers of hub/repositories-licenses, not {name!r}')
    if "tags" in facts and not (isinstance(facts["tags"], list) and all(isinstance(t, str) for t in facts["tags"])):
        errors.append('"tags" must be an array of strings')
    return errors


def _space_faults(facts: dict) -> list[str]:
    errors = []
    if facts.get("sdk") not in SDKS:
        errors.append(f'"sdk" must be one of {", ".join(SDKS)}')
    for name in ("colorFrom", "colorTo"):
        if name in facts and facts[name] not in COLORS:
            errors.append(f'"{name}" must be one of {", ".join(COLORS)}')
    if len(str(facts.get("short_description", ""))) > 60:
        errors.append('"short_description" length must be less than or equal to 60 characters long')
    if "app_file" in facts and str(facts["app_file"]).startswith(("/", "..")):
        errors.append('"app_file" must be relative to the root of the repository')
    return errors


def _results_faults(facts: dict) -> list[str]:
    errors = []
    for i, entry in enumerate(facts.get("model-index", [])):
        if not isinstance(entry, dict) or "name" not in entry or "results" not in entry:
            errors.append(f'"model-index[{i}]" must have a name and results')
            continue
        for j, result in enumerate(entry["results"]):
            if not {"task", "dataset", "metrics"} <= set(result):
                errors.append(f'"model-index[{i}].results[{j}]" must have task, dataset and metrics')
            elif not {"type", "name"} <= set(result["dataset"]):
                errors.append(f'"model-index[{i}].results[{j}].dataset" must have a type and a name')
    return errors
