"""Settings of Voxtral fine-tunings that lie in files: YAML or JSON, and the constants in Python scripts."""

import ast
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stentor.config.convert.draft import ForeignConfig, node_of, read
from stentor.config.convert.shell import Options, Unknown, Vocabulary
from stentor.config.document import Mistake, Mistakes, Node, Place, read_text
from stentor.errors import ConfigError


def file_options(path: Path, vocabulary: Vocabulary, table: Mapping[str, Any]) -> Options:
    """The options in a YAML or JSON file: by `table` (globs of keys, and defaults of the programs that such keys tell),
    else by the last parts of the keys."""
    root, result = read(path), Options({}, [], [])
    values = ForeignConfig(root, null_is_default=True).values
    for key, node in values.items():
        option = Unknown(key.rpartition(".")[2])
        names = [option.bare, Unknown("-".join(key.split(".")[-2:])).bare]
        glob, name = next(((g, n) for g, n in table["keys"].items() if fnmatchcase(key, g)), ("", ""))
        bare = name or next((b for n in names[::-1] if (b := vocabulary.same.get(n, n)) in vocabulary.known), "")
        if glob.endswith("*"):
            before = f"{result.values[bare].value}, " if bare in result.values else ""
            result.values[bare] = Node(f"{before}{key.partition('.')[2]} {node.plain()}", node.place)
        elif bare:
            result.values[bare] = Node("(not shown)", node.place) if bare.endswith("token") else node
        else:
            plain = node.plain() if isinstance(node.value, list) else [node.plain()]
            result.others.append(Unknown(option.name, tuple(map(str, plain))))
    for glob, defaults in table["defaults"].items():
        if any(fnmatchcase(key, glob) for key in values):
            for name, value in defaults.items():
                result.values.setdefault(name, node_of(value, root.place))
    return result


def script_options(path: Path, vocabulary: Vocabulary, table: Mapping[str, Any]) -> Options:
    """The options that a Python script has as constants: in calls of `table` (the name of a function, by glob, and the
    options of its arguments), or as defaults of its command line. Raises `ConfigError` for a script without."""
    try:
        script = _Script(ast.parse(read_text(path)))
    except SyntaxError as error:
        raise Mistakes([Mistake(Place(0, error.lineno or 1, str(path)), f"not Python: {error.msg}")]) from None
    result = Options({}, [], [])
    unread: list[Unknown] = []
    for call in script.calls:
        function = ast.unparse(call.func)
        arguments: Mapping[Any, str] = next((names for glob, names in table.items() if fnmatchcase(function, glob)), {})
        for key, node in [*enumerate(call.args), *((k.arg, k.value) for k in call.keywords)]:
            name = arguments.get(key, Unknown(str(key)).bare if "*" in arguments else "")
            name = vocabulary.same.get(name, name)
            name = "eval-count" if name == "train-count" and name in result.values else name
            if not name or name in result.values:
                continue
            try:
                value = script.value(node)
            except (ValueError, TypeError, IndexError):
                unread.append(Unknown(f"{key}={ast.unparse(node)}"))
                continue
            if name in vocabulary.known and value is not None:
                result.values[name] = node_of(value, Place(0, node.lineno, str(path)))
            elif name not in vocabulary.known:
                result.others.append(Unknown(str(key), (str(value),)))
    if len(unread) >= len(result.values):
        files = dict.fromkeys(re.findall(r"[\"']([\w./-]+\.(?:ya?ml|json))[\"']", read_text(path)))
        instead = f"the file with its settings ({', '.join(files)})" if files else "its command line"
        raise ConfigError(f"{path} has no settings to convert, such as TrainingArguments(...): give {instead}.")
    result.others.extend(unread)
    result.values.setdefault("train-count", Node(None, Place(0, 1, str(path))))
    return result


class _Script:
    """The calls in a script, and its constants by name; `args.NAME` has the default of the command line."""

    def __init__(self, tree: ast.Module):
        nodes = sorted((n for n in ast.walk(tree) if isinstance(n, ast.stmt | ast.Call)), key=lambda n: n.lineno)
        self.calls = [n for n in nodes if isinstance(n, ast.Call)]
        self.names = {ast.unparse(t): n.value for n in nodes if isinstance(n, ast.Assign) for t in n.targets}
        for call in self.calls:
            if ast.unparse(call.func).endswith(".add_argument") and call.args:
                default = next((k.value for k in call.keywords if k.arg == "default"), ast.Constant(None))
                name = ast.literal_eval(call.args[-1]) if isinstance(call.args[-1], ast.Constant) else "?"
                self.names[f"args.{name.lstrip('-').replace('-', '_')}"] = default

    def value(self, node: ast.expr, depth: int = 9) -> Any:
        """The value of an expression. Raises ValueError where it is not known."""
        if isinstance(node, ast.IfExp):
            return self.value(node.body, depth)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
            bounds = [self.value(bound, depth) for bound in node.args[:2]]
            return bounds[-1] - sum(bounds[:-1])
        name = ast.unparse(node)
        return self.value(self.names[name], depth - 1) if depth and name in self.names else ast.literal_eval(node)
