"""Foreign names: fields and sessions of other interfaces, as those of this server."""

from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from typing import Any

from pydantic_core import from_json

from stentor.data.yaml_text import read_yaml
from stentor.serve.errors import ApiError

TABLE: dict[str, Any] = read_yaml(resources.files(__package__).joinpath("foreign.yaml").read_text("utf-8"))
OFF = (False, "false", "False", "0")


def own_fields(sent: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a client by the names that are `known` here, and warnings about what has no effect. Raises
    ApiError for a name that is something else here."""
    fields, warnings = {name: value for name, value in sent.items() if name in known}, []
    for name, value in ((name, value) for name, value in sent.items() if name not in known):
        own, switch = TABLE["same"].get(name), TABLE["on"].get(name, {})
        if switch.keys() & known.keys() and value in (True, "true", "True", "1"):
            fields = switch | fields
        elif switch.keys() & known.keys() or name in TABLE["ignored"] or (name in TABLE["advice"] and value in OFF):
            warnings.append(f"{name} has no effect on this server.")
        elif name in TABLE["advice"]:
            raise ApiError(400, f"There is no field {name!r} here: {TABLE['advice'][name]}.", name)
        elif own in sent:
            raise ApiError(400, f"{name} is {own} here, and both are sent: leave one out.", name)
        else:  # what is not known at all is refused with the known names
            fields[own if own in known else name] = value.split(",") if name == "hotwords" else value
    for name, value in fields.items():
        if isinstance(value, str):
            fields[name] = TABLE["values"].get(name, {}).get(value, value)
        if name == "chunking_strategy" and isinstance(value, str) and value.lstrip().startswith("{"):
            with suppress(ValueError):
                fields[name] = from_json(value)
    return fields, warnings


def own_session(session: Any) -> Any:
    """A session of the beta as one of today; others as they are."""
    names = TABLE["session"]
    if not isinstance(session, dict) or not names.keys() & session.keys():
        return session
    audio = {own: session[name] for name, own in names.items() if name in session}
    if isinstance(kind := audio.get("format"), str):
        audio["format"] = {"type": TABLE["pcm"].get(kind, kind)}
    return {**{k: v for k, v in session.items() if k not in names}, "audio": {"input": audio}}
