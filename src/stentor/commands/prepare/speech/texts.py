"""Texts that are to be spoken: of a source, or by a language model, without those that are held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from stentor.config.load import parse_source
from stentor.data.cut import UnusableRecord, is_spoken, language_of, text_of
from stentor.errors import ConfigError, DataError
from stentor.pipeline.journal import Journal
from stentor.pipeline.runner import refuse_rejects
from stentor.sources.base import Source
from stentor.sources.hub import Hub
from stentor.sources.synth import Synth
from stentor.tasks.speak.task import seed_of
from stentor.text.normalize import plain_text

if TYPE_CHECKING:
    from stentor.commands.prepare_options import SpeechOptions

TOGETHER = 64
"""Texts that a language model writes at once."""
DRAWS = 20
"""How often a language model may write what it wrote already, for each text that is wanted."""


@dataclass(frozen=True)
class Text:
    """One text, and what a `synth` source says of how to speak it."""

    id: str
    text: str
    language: str | None = None
    request: dict[str, Any] | None = None
    """Arguments of `stentor.audio.synth.say`."""


def read_texts(source: Source) -> Iterator[Text | UnusableRecord]:
    """The texts of a source; no audio is read where that can be avoided. Raises what the source raises."""
    chosen = slice(source.skip, None if source.limit is None else source.skip + source.limit)
    plain = not source.where and not source.exclude
    if isinstance(source, Synth) and plain:
        for number, request in enumerate(source.requests()[chosen]):
            yield Text(f"synth:{number}", request["text"], source.language, request)
    elif isinstance(source, Hub) and plain and source.part is None:
        name = source.name or source.preset
        texts = islice(source.texts(), chosen.start, chosen.stop)
        yield from (Text(f"{name}:{number}", text, source.language) for number, text in enumerate(texts))
    else:
        cuts = (source.model_copy(update={"silence": None}) if isinstance(source, Synth) else source).cuts()
        for cut in cuts:
            if isinstance(cut, UnusableRecord):
                yield cut
            else:
                voice = cut.custom["voice"] if is_spoken(cut) else None
                yield Text(cut.id, text_of(cut) or "", language_of(cut), voice)


def written_texts(options: SpeechOptions) -> list[Text]:
    """Different texts by the language model of the options, which are kept in `texts.jsonl`. Raises ConfigError for
    another model and for options that do not go together, and DataError when it always writes the same."""
    if options.count is None:
        raise ConfigError("Say how many texts the language model is to write: --count 1000.")
    options.to.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(options, name) for name in ("language_model", "temperature", "count", "seed")}
    journal = Journal(options.to / "texts.jsonl", settings)
    if len(journal) < options.count:  # a kill may have left some lines
        journal.add([{"id": f"text:{number}", "text": text} for number, text in enumerate(_sampled(options))])
    return [Text(line["id"], line["text"], options.language) for line in journal.lines(journal.offsets)]


def _sampled(options: SpeechOptions) -> list[str]:
    from stentor.inference.load import load

    assert options.count is not None and options.language_model is not None
    model = load(options.language_model, options.device.partition(",")[0])
    task, texts = model.for_texts(), dict[str, None]()
    for first in range(0, DRAWS * options.count, TOGETHER):
        seeds = [seed_of(options.seed, f"text:{number}") for number in range(first, first + TOGETHER)]
        texts |= dict.fromkeys(filter(None, task.sample(model.bundle, seeds, options.temperature)))
        if len(texts) >= options.count:
            return list(texts)[: options.count]
    raise DataError(
        f"{options.language_model} wrote only {len(texts):,} different texts in {DRAWS * options.count:,}: ask for "
        "fewer with --count, or raise --temperature."
    )


def held_out(specs: Sequence[str]) -> dict[str, str]:
    """Of the texts of these sources, as `plain_text`, the source. Raises what the sources raise, and DataError where
    over 1 % of a source cannot be read: its texts would be spoken."""
    held: dict[str, str] = {}
    for spec in specs:
        messages, total = [], 0
        for each in read_texts(parse_source(spec)):
            total += 1
            if isinstance(each, Text):
                held[plain_text(each.text)] = spec
            else:
                messages.append(each.message)
        try:
            refuse_rejects(messages, total)
        except DataError as error:
            raise DataError(f"{spec}: their texts would be spoken, so mend these or take them out. {error}") from None
    return held


def allowed(
    texts: Sequence[Text | UnusableRecord], excluded: dict[str, str]
) -> tuple[list[Text], list[dict[str, Any]]]:
    """The texts that may be spoken; the others as rejects. Raises DataError where none may."""
    chosen, rejects = [], []
    for text in texts:
        if isinstance(text, UnusableRecord):
            rejects.append({"id": text.id, "reason": text.reason, "message": text.message})
        elif not text.text.strip():
            rejects.append({"id": text.id, "reason": "empty_text"})
        elif (spec := excluded.get(plain_text(text.text))) is not None:
            rejects.append({"id": text.id, "text": text.text, "reason": "held_out", "value": spec})
        else:
            chosen.append(text)
    if not chosen:
        counts = ", ".join(f"{n:,} {reason}" for reason, n in reasons_of(rejects))
        raise DataError(f"There is nothing to speak: none of {len(texts):,} texts is left ({counts}).")
    return chosen, rejects


def reasons_of(rejects: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """How often each reason occurs, the most frequent first."""
    return Counter(reject["reason"] for reject in rejects).most_common()
