"""Options of `stentor evaluate`, and the way of scoring that they choose."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.commands.shared_options import FINISHED_MODEL, PARTS_PLUGINS
from stentor.errors import ConfigError
from stentor.inference.declarations import Argument, Flag, Option, command_line, given, refuse_unused, verb
from stentor.pipeline.options import RAY, WORKERS, GpuCluster

TASK, SPEAK = "the task of a model", "the task speak"
BOARD, TUNE, STREAM, DIARIZER, AUDIO_FROM = "--board", "--tune", "--stream", "--diarizer", "--audio-from"
"""Ways of scoring: `refuse_unused` names them."""
SPEECH_BOARD = "--board of speech synthesis"
FUNCTIONS = {
    TASK: ("command", "evaluate"),
    AUDIO_FROM: ("command", "evaluate"),
    BOARD: ("board", "evaluate_board"),
    TUNE: ("tune", "tune"),
    STREAM: ("streamed", "evaluate_streams"),
    DIARIZER: ("speaker_attributed", "attributed"),
}
"""Module and function of each."""
OF_SPEAKERS, OF_STREAMS = "Speaker diarization", "Streaming"
"""Headings in the help."""

BOARDS: dict[str, Any] = {"panel": "Boards", "ways": (BOARD, SPEECH_BOARD)}
SPEECH: dict[str, Any] = {"panel": "Speech synthesis", "ways": (SPEAK,)}
JUDGES: dict[str, Any] = {"panel": "Speech synthesis", "ways": (SPEAK, AUDIO_FROM)}


@verb("evaluate")
@dataclass(kw_only=True)
class EvaluateOptions(GpuCluster):
    """Score a model on data."""

    data: str = Option(
        "A manifest or evaluation list, or type=...,key=value of one data source.",
        "",
        ways=(TASK, TUNE, STREAM, DIARIZER, AUDIO_FROM),
    )
    model: str | None = Argument(f"{FINISHED_MODEL} None with --audio-from.", None)
    task: str | None = Option("Task type. Default: the one the model was trained for.", ways=(TASK, STREAM))
    scoring: str | None = Option(
        "For transcripts: open_asr normalises and counts as the Open ASR Leaderboard does.", ways=(TASK,)
    )
    board: str | None = Option(
        "Instead of --data: a board of the Open ASR Leaderboard (english, multilingual, long_form), or sets of it "
        "as BOARD:SET,SET; or a board of speech synthesis with its list and judges (seedtts_en, seedtts_zh, "
        "librispeech_pc, minimax, fleurs).",
        panel="Boards",
    )
    copies: Path | None = Option(
        "With --board: folder with copies of its data sets and judges, as COPIES/OWNER/NAME.", **BOARDS
    )
    fetch: bool = Flag(
        "With --board for speech synthesis: fetch its list and judges, into the folder of --copies if given, and stop.",
        panel="Boards",
        ways=(SPEECH_BOARD,),
    )
    limit: int | None = Option("With --board: use only this many recordings of each set, for a trial.", min=1, **BOARDS)
    json: Path | None = Option("Write the scores to this file, and predictions next to it.", output=True)
    batch_tokens: int = Option("Most sequence positions in a batch.", 2000, min=1, ways=(TASK, BOARD, STREAM))
    tune: bool = Flag(
        "Diarization: find the thresholds with the lowest DER on the data and store them.", panel=OF_SPEAKERS
    )
    diarizer: str | None = Option(
        "Diarizer: score transcripts with speakers (cpWER).", ways=(STREAM, DIARIZER), panel=OF_SPEAKERS
    )
    stream: str | None = Option(
        "Score streaming at this delay in seconds, or at several: 0.16,0.32,1.28.", panel=OF_STREAMS
    )
    report: Path | None = Option(
        "With --stream: the run whose report shows the figures. Default: MODEL, if it is one.",
        ways=(STREAM,),
        panel=OF_STREAMS,
    )
    recognizer: str | None = Option(
        "For speech models: recogniser for the word error rate, also of transformers.", local=True, **JUDGES
    )
    embedder: str | None = Option(
        "For speech models: speaker embedding model for the similarity, or cepstra (built in).", **JUDGES
    )
    judge: list[str] = Option(
        "For speech models: another judge as type=...,key=value, such as a plug-in's.", [], **JUDGES
    )
    voice: str = Option("For speech models: source of the voice: reference, instruct, none or auto.", "auto", **SPEECH)
    length: str = Option(
        "For speech models: length: recorded, rule, or auto (the rule for evaluation lists).", "auto", **SPEECH
    )
    generation: str | None = Option("For speech models: generation settings such as steps=16,guidance=0.", **SPEECH)
    denoise: bool | None = Option(
        "For speech models: ask for clean speech after noisy references.", flags="--denoise/--no-denoise", **SPEECH
    )
    normalizer: str = Option(
        "Text normaliser of the error rates: multilingual, whisper_basic, whisper_english, none, seed_tts, "
        "librispeech_pc, minimax, fleurs, open_asr, or auto: that of the evaluation list, or the model's own. For "
        "recognisers several as NAME,NAME: each gets its figures, the first one is the main one.",
        "auto",
        ways=(TASK, STREAM, SPEAK, AUDIO_FROM),
    )
    audio: Path | None = Option("For speech models: write their speech to this folder.", output=True, **SPEECH)
    audio_from: Path | None = Option(
        "Without a MODEL: score the speech in this folder, files ID.wav.", local=True, panel="Speech synthesis"
    )
    processes: int = Option("Processes on this machine: one for each GPU.", 1, min=1, ways=(TASK, AUDIO_FROM))
    ray: str | None = Option(RAY, ways=(TASK,))
    jobs: int | None = Option(WORKERS, min=1, needs="ray")
    plugin: list[Path] = Option(PARTS_PLUGINS, [], local=True)

    @property
    def normalizers(self) -> list[str]:
        """The names of `--normalizer`, each once."""
        return list(dict.fromkeys(name.strip() for name in self.normalizer.split(",")))

    @property
    def speaks_board(self) -> bool:
        """Whether the board is one of speech synthesis: the task `speak`, with its list and judges. Raises ConfigError
        for a board that is not known."""
        from stentor.sources.open_asr import boards
        from stentor.sources.speech_boards import speech_boards

        name = (self.board or "").partition(":")[0]
        known = [*boards(), *speech_boards()] if name else [name]
        if name not in known:
            raise ConfigError(f"--board {self.board}: there is no board '{name}'; known are: {', '.join(known)}.")
        if name in speech_boards() and name != self.board:
            raise ConfigError(f"--board {self.board}: {name} is one list without parts: leave out what follows it.")
        return name in speech_boards()

    @property
    def way(self) -> str:
        """The way of scoring. Raises ConfigError where two of them are asked for."""
        names = {field.name for field, _ in given(self)}
        chosen = [way for way in (BOARD, TUNE, STREAM, DIARIZER, AUDIO_FROM) if way[2:].replace("-", "_") in names]
        if self.speaks_board and chosen in ([BOARD], [BOARD, AUDIO_FROM]):
            chosen.remove(BOARD)
        if chosen == [STREAM, DIARIZER]:
            return STREAM
        if len(chosen) > 1:
            raise ConfigError(f"{chosen[0]} and {chosen[1]} do not go together: leave out one of them.")
        return chosen[0] if chosen else TASK

    def __call__(self) -> int | None:
        """Score in the way that the options choose, and print the scores. Raises ConfigError for options that do not go
        together, or are not for this way."""
        way, spoken, options = self.way, self.speaks_board, self
        # What a task of the model does not use is refused when the model is known.
        refuse_unused(self, *((SPEECH_BOARD,) if spoken else ()), *((SPEAK, TASK) if way == TASK else (way,)))
        if spoken:
            from stentor.commands.evaluate.speech import check_options
            from stentor.commands.evaluate.speech_board import with_board

            if not self.fetch:
                check_options(self)
            options = with_board(self)
            if self.fetch:
                print("\n".join((f"{self.board} is here:", options.data, *options.judge)))
                return None
        elif self.model is None and way not in (TASK, AUDIO_FROM):
            raise ConfigError(f"{way} scores a model: name the MODEL.")
        elif not self.data and way != BOARD:
            raise ConfigError("There is nothing to score on: give it with --data.")
        if way in (TASK, AUDIO_FROM):
            from stentor.engine.launch import launch, launched

            if self.ray is not None and self.processes > 1:
                raise ConfigError("--ray and --processes do not go together: leave out one of them.")
            if not launched(self.processes) and self.processes > 1:
                return launch(self.processes, ["evaluate", *command_line(self)])
        module, function = FUNCTIONS[way]
        print(vars(importlib.import_module(f"stentor.commands.evaluate.{module}"))[function](options))
        return None
