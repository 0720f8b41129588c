"""Generated documentation: fresh, complete, and a JSON schema that means what the loader means."""

from pathlib import Path
from typing import Any

import pytest

from stentor.config.document import parse
from stentor.config.reference import json_schema, keys, listing, markdown, require_fresh, write
from stentor.config.schema import Config
from stentor.errors import ConfigError, StentorError

ROOT = Path(__file__).parents[2]
WRONG = ROOT / "tests/errors/wrong"


def test_a_stale_reference_is_refused(tmp_path):
    path = tmp_path / "docs/keys.md"
    with pytest.raises(StentorError, match="not up to date"):
        require_fresh(path)
    write(path)
    require_fresh(path)
    path.write_text(path.read_text() + "x")
    with pytest.raises(StentorError, match="stentor config reference"):
        require_fresh(path)


def test_reference_has_every_key_with_its_meaning():
    text = markdown()
    for section in ("optim", "schedule", "train", "data"):
        assert f"## `{section}`" in text
    assert "| `lr` | number ≥ 0, ≤ 100 | `0.001` | Peak learning rate. |" in text
    assert "`model` with `type: speech_llm`" in text
    for key, _, _, meaning in keys():
        if not key.endswith("].type"):
            assert meaning, f"{key} has no docstring"


def test_keys_of_a_prefix():
    names = [key for key, *_ in keys("optim")]
    assert "optim.lr" in names and all(key.split(".")[0] == "optim" for key in names)
    assert [key for key, *_ in keys("data.train.*[jsonl].path")] == ["data.train.*[jsonl].path"]
    assert [key for key, *_ in keys("optim.lr")] == ["optim.lr"]
    with pytest.raises(ConfigError, match="did you mean 'optim'"):
        list(listing("optm"))


def valid(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """A small JSON schema checker: the keywords that the schema uses, as the specification reads them."""
    known = {
        "$ref",
        "$schema",
        "$defs",
        "anyOf",
        "oneOf",
        "enum",
        "const",
        "type",
        "properties",
        "required",
        "items",
        "additionalProperties",
        "prefixItems",
        "minItems",
        "maxItems",
        "minLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "if",
        "then",
        "else",
        "default",
        "description",
        "title",
        "format",
        "pattern",
        "maxLength",
    }
    assert set(schema) <= known, set(schema) - known
    if "$ref" in schema:
        where = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            where = where[step]
        if not valid(value, where, root):
            return False
    kinds = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "null": value is None,
        "boolean": isinstance(value, bool),
        "number": isinstance(value, (int, float)) and not isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
    }
    checks = [
        "type" not in schema or kinds[schema["type"]],
        "enum" not in schema or value in schema["enum"],
        "const" not in schema or value == schema["const"],
        "anyOf" not in schema or any(valid(value, s, root) for s in schema["anyOf"]),
        "if" not in schema or valid(value, schema["then" if valid(value, schema["if"], root) else "else"], root),
        "oneOf" not in schema or sum(valid(value, s, root) for s in schema["oneOf"]) == 1,
    ]
    if kinds["number"]:
        checks += [
            value >= schema.get("minimum", value),
            value <= schema.get("maximum", value),
            "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"],
            "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"],
        ]
    if isinstance(value, list):
        checks.append(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
        first = schema.get("prefixItems", [])
        checks += [valid(v, s, root) for v, s in zip(value, first)]
        checks += [valid(v, schema["items"], root) for v in value[len(first) :] if "items" in schema]
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        checks += [key in value for key in schema.get("required", [])]
        checks += [valid(v, properties[k], root) for k, v in value.items() if k in properties]
        other = schema.get("additionalProperties", True)
        rest = {k: v for k, v in value.items() if k not in properties}
        checks += [not rest] if other is False else []
        checks += [valid(v, other, root) for v in rest.values()] if isinstance(other, dict) else []
    return all(checks)


@pytest.fixture(scope="module")
def schema():
    return json_schema()


def test_json_schema_names_every_kind(schema):
    kinds = schema["$defs"]["Source"]["anyOf"][0]["oneOf"]
    assert {"$ref": "#/$defs/Source.jsonl"} in kinds
    assert schema["$defs"]["Source.jsonl"]["required"][:2] == ["type", "path"]
    described = schema["$defs"]["Optim"]["anyOf"][0]["properties"]["lr"]["description"]
    assert described == "Peak learning rate."
    assert set(schema["$defs"]["Run"]["properties"]) == {"base", *Config.model_fields}
    pytest.importorskip("jsonschema").Draft202012Validator.check_schema(schema)


RUNS = [*sorted((ROOT / "recipes").glob("*.yaml")), *sorted((ROOT / "src/stentor/commands").glob("*.yaml"))]


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.name)
def test_json_schema_accepts_what_the_loader_accepts(path, schema):
    data = parse(path.read_text(), str(path), 0, []).plain()
    assert valid(data, schema, schema)


OUTSIDE = {  # what a JSON schema cannot say
    "base_circle",
    "base_inherited",
    "base_missing",
    "contradiction",
    "cross_both_origins",
    "duplicate",
    "infinite",
    "merge_key",
    "noise_from_nowhere",
    "override_values",
    "sequence_family",
    "sequence_kl",
    "sequence_shard",
    "sequence_task",
    "sequence_two",
    "stage_unknown_key",
    "stage_value",
    "token",
    "two_documents",
}


REFUSED = [
    path for path in sorted(WRONG.glob("*.yaml")) if path.stem not in OUTSIDE and not path.stem.startswith("syntax_")
]


@pytest.mark.parametrize("path", REFUSED, ids=lambda p: p.stem)
def test_json_schema_refuses_what_the_loader_refuses(path, schema):
    assert not valid(parse(path.read_text(), str(path), 0, []).plain(), schema, schema)
