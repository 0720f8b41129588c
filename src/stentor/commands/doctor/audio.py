"""Checks of audio reading and of the built-in voice."""

import json
from collections.abc import Iterator

from stentor.commands.doctor.finding import BROKEN, NOTE, OK, WARNING, Finding, installed, last_line, python_process

VOICE_PROBE = """
from stentor.audio.synth import say
speech = say("testing one two three")
assert abs(speech.audio).max() > 0.01, "it spoke silence"
print(f"{speech.seconds:.1f}")
"""

CODEC_PROBE = """
import io, json
import numpy, soundfile
known = soundfile.available_formats()
lacking = []
for name, format, subtype in (("WAV", "WAV", "PCM_16"), ("FLAC", "FLAC", "PCM_16"), ("MP3", "MP3", "MPEG_LAYER_III"),
                              ("Ogg Vorbis", "OGG", "VORBIS"), ("Opus", "OGG", "OPUS")):
    try:
        file = io.BytesIO()
        soundfile.write(file, numpy.zeros(16000, "float32"), 16000, format=format, subtype=subtype)
        file.seek(0)
        soundfile.read(file)
    except Exception:
        lacking.append(name)
print(json.dumps([soundfile.__libsndfile_version__, lacking]))
"""


def voice() -> Iterator[Finding]:
    """The built-in voice has to speak, not only to be installed."""
    rc, _, err = python_process(VOICE_PROBE)
    if rc == 0:
        yield Finding("voice", OK, "espeak-ng speaks")
        return
    why = last_line(err) or f"exit code {rc}"
    fix = "pip install --force-reinstall espeakng-loader (needed for `stentor quickstart` and the source `synth`)."
    yield Finding("voice", BROKEN if "espeak" in why else WARNING, f"the built-in voice does not speak: {why}", fix)


def soundfile() -> Iterator[Finding]:
    rc, out, err = python_process(CODEC_PROBE)
    if rc != 0:
        why = last_line(err) or f"exit code {rc}"
        fix = "pip install --force-reinstall soundfile (on Linux without a wheel: install the system's libsndfile)."
        yield Finding("soundfile", BROKEN, f"audio files cannot be read: {why}", fix)
        return
    library, lacking = json.loads(out.splitlines()[-1])
    if lacking:
        fix = "pip install --upgrade soundfile, whose wheels bring libsndfile 1.2."
        yield Finding("soundfile", WARNING, f"libsndfile {library} lacks {', '.join(lacking)}", fix)
    else:
        yield Finding("soundfile", OK, f"libsndfile {library}: wav, flac, mp3, ogg, opus")


def av() -> Iterator[Finding]:
    if not installed("av"):
        what = "PyAV is not installed: no m4a, aac, wma, webm or video"
        yield Finding("other formats", NOTE, what, "pip install 'stentor[av]'")
        return
    rc, out, err = python_process("import av; print(av.__version__)")
    if rc == 0:
        yield Finding("other formats", OK, f"PyAV {out.strip()} (FFmpeg inside): m4a, aac, wma, webm, video")
    else:
        yield Finding("other formats", WARNING, f"PyAV: {last_line(err)}", "pip install --force-reinstall av")
