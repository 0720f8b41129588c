"""Rows: recordings as strangers have them."""

import numpy as np
from stranger_row import row
from stranger_sounds import clip, header, media, talk, wav

JSON = "transcribe {words} %s --format json"
SPOKEN = "one two three"


@row("MusicPlayerDaemon/MPD/issues/1200", JSON % "two.mp3", duration=5.5, says=("two.mp3",))
def mp3_files_joined_by_cat(folder):
    one = wav(folder / "one.mp3", np.pad(talk(), (0, 32000)))
    (folder / "two.mp3").write_bytes(2 * one.read_bytes())


@row("RustAudio/lewton/issues/18", JSON % "two.ogg", duration=5.44, starts=(0, 2.72))
def ogg_files_joined_by_cat(folder):
    one = wav(folder / "one.ogg", np.pad(talk(), (0, 32000)))
    (folder / "two.ogg").write_bytes(2 * one.read_bytes())


@row("jongwony/cc-plugin/pull/72", JSON % "rec.wav", duration=0.72, text=SPOKEN)
def wav_of_a_recorder_that_was_killed(folder):
    header(wav(folder / "rec.wav"), 0x7FFFFFFF)


@row("island-io/mila/issues/151", JSON % "rec.wav", duration=0.72, text=SPOKEN)
def wav_whose_header_says_that_it_is_empty(folder):
    header(wav(folder / "rec.wav"), 0)


@row("pjsip/pjproject/pull/2892", JSON % "rec.wav --partial", duration=0.72, says=("rec.wav",))
def wav_whose_header_promises_twice_the_data(folder):
    path = wav(folder / "rec.wav")
    header(path, 2 * len(clip()) * 2)


@row("pjsip/pjproject/pull/2892", JSON % "rec.wav", code=3, says=("rec.wav", "--partial"))
def a_promise_of_twice_the_data_names_the_option(folder):
    header(wav(folder / "rec.wav"), 2 * len(clip()) * 2)


@row("kkroening/ffmpeg-python/issues/118", JSON % "pipe.wav", duration=0.72, text=SPOKEN)
def wav_that_ffmpeg_wrote_to_a_pipe(folder):
    header(wav(folder / "pipe.wav"), 0xFFFFFFFF)


@row("sandrohanea/whisper.net/issues/387", JSON % "phone.wav", duration=0.72, text=SPOKEN)
def wav_that_lacks_its_last_samples(folder):
    path = wav(folder / "phone.wav")
    path.write_bytes(path.read_bytes()[:-44])


@row("kyutai-labs/pocket-tts/issues/232", JSON % "speech.wav --partial", duration=0.72, says=("speech.wav",))
def wav_that_declares_a_billion_samples(folder):
    header(wav(folder / "speech.wav"), 2_000_000_000)


@row("NousResearch/hermes-agent/pull/93193", JSON % "voice.webm --partial", says=("voice.webm",))
def webm_of_a_recorder_that_was_stopped(folder):
    path = media(folder / "voice.webm", talk(1.5, 1.5, 1.5), codec="libopus")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


@row("agersant/mp3-duration/issues/16", JSON % "zero.mp3", duration=4.16)
def mp3_whose_header_counts_no_frames(folder):
    data = bytearray(wav(folder / "zero.mp3", talk(2.72)).read_bytes())
    at = max(data.find(b"Xing"), data.find(b"Info"))
    data[at + 8 : at + 12] = bytes(4)
    (folder / "zero.mp3").write_bytes(data)


@row("pyannote/pyannote-audio/issues/1461", JSON % "no_data.wav", code=3, says=("no_data.wav",))
def wav_without_a_data_chunk(folder):
    data = wav(folder / "no_data.wav").read_bytes()
    (folder / "no_data.wav").write_bytes(data[: data.index(b"data")])


@row("sgl-project/sglang-omni/pull/1948", JSON % "call.wav", duration=0.72)
def mu_law_of_a_telephone(folder):
    wav(folder / "call.wav", clip()[::2], samplerate=8000, subtype="ULAW")


@row("saisyam/pywav/issues/2", JSON % "call.wav", duration=0.72)
def a_law_of_a_telephone(folder):
    wav(folder / "call.wav", clip()[::2], samplerate=8000, subtype="ALAW")


@row("WarrenWeckesser/wavio/issues/4", JSON % "deep.wav", duration=0.72, text=SPOKEN)
def extensible_wav_with_24_bits(folder):
    wav(folder / "deep.wav", np.stack([clip(), clip()], 1), subtype="PCM_24", format="WAVEX")


@row("CyCoreSystems/ari/issues/113", JSON % "voicemail.wav", duration=0.72)
def gsm_of_a_voicemail(folder):
    wav(folder / "voicemail.wav", clip()[::2], samplerate=8000, subtype="GSM610")


@row("m-bain/whisperX/pull/750", JSON % "phase.wav", text=SPOKEN)
def channels_in_opposite_phase(folder):
    wav(folder / "phase.wav", np.stack([clip(), -clip()], 1))


@row("altic-dev/FluidVoice/issues/623", JSON % "right.wav", text=SPOKEN)
def speech_on_the_right_channel_only(folder):
    wav(folder / "right.wav", np.stack([0 * clip(), 2 * clip()], 1).clip(-1, 1))


@row("alphacep/vosk-api/issues/485", JSON % "call.wav --channel 2", code=3, says=("call.wav", "channel"))
def a_channel_that_does_not_exist(folder):
    wav(folder / "call.wav", np.stack([clip(), clip()], 1))


@row("SYSTRAN/faster-whisper/issues/1060", JSON % "silence.wav", text="", duration=6.64)
def a_silent_recording(folder):
    wav(folder / "silence.wav", np.zeros(round(6.64 * 16000), np.float32))


@row("sandrohanea/whisper.net/issues/265", JSON % "click.wav", duration=0.02)
def twenty_milliseconds(folder):
    wav(folder / "click.wav", clip()[:320])


@row("ggml-org/whisper.cpp/issues/1603", JSON % "short.wav", text=SPOKEN)
def less_than_a_second(folder):
    wav(folder / "short.wav")


@row("McCloudS/subgen/issues/21", JSON % "hiss.wav", says=('"text": ""',))
def nothing_but_faint_hiss(folder):
    wav(folder / "hiss.wav", 1e-4 * np.random.default_rng(0).standard_normal(48000).astype(np.float32))


@row("Purfview/whisper-standalone-win/issues/387", JSON % "long.wav", duration=13.44, starts=(0, 12.72))
def twelve_seconds_of_silence_in_the_middle(folder):
    wav(folder / "long.wav", talk(12))


@row("speaches-ai/speaches/issues/171", JSON % "browser.webm", duration=0.72)
def webm_of_a_browser(folder):
    media(folder / "browser.webm", clip(), codec="libopus")


@row("bastibe/python-soundfile/issues/389", JSON % "memo.m4a", duration=0.72)
def voice_memo_of_a_phone(folder):
    media(folder / "memo.m4a", clip())


@row("pytorch/audio/issues/3958", JSON % "audio.mp3", duration=0.72)
def m4a_that_is_called_mp3(folder):
    media(folder / "audio.m4a", clip()).rename(folder / "audio.mp3")


@row("libsndfile/libsndfile/issues/984", JSON % "tagged.mp3", duration=0.72)
def mp3_with_a_picture_of_a_megabyte_in_its_tag(folder):
    size = bytes((2**20 >> shift) & 127 for shift in (21, 14, 7, 0))
    audio = wav(folder / "plain.mp3").read_bytes()
    (folder / "tagged.mp3").write_bytes(b"ID3\x03\0\0" + size + bytes(2**20) + audio)


@row("kaixxx/noScribe/issues/229", JSON % "holed.mp3 --partial", says=("holed.mp3",))
def mp3_with_a_hole_in_the_middle(folder):
    data = bytearray(wav(folder / "holed.mp3", talk(2.72)).read_bytes())
    data[len(data) // 2 : len(data) // 2 + 700] = bytes(700)
    (folder / "holed.mp3").write_bytes(data)


@row("Purfview/whisper-standalone-win/issues/111", JSON % "mute.mp4", code=3, says=("mute.mp4", "no audio"))
def a_film_without_sound(folder):
    media(folder / "mute.mp4", video=1.0)


@row("baxtree/subaligner/issues/91", JSON % "film.mkv", duration=0.72, text=SPOKEN)
def a_film_longer_than_its_sound(folder):
    media(folder / "film.mkv", clip(), codec="flac", video=6.0, rate=16000)


@row("morpheus65535/bazarr/issues/3154", JSON % "film.mkv", starts=(4.9,))
def sound_that_starts_late_in_mkv(folder):
    media(folder / "film.mkv", clip(), codec="flac", delay=4.9, video=6.0, rate=16000)


@row("McCloudS/subgen/pull/305", JSON % "film.mp4", starts=(4.1,))
def sound_that_starts_late_in_mp4(folder):
    media(folder / "film.mp4", clip(), delay=4.1, video=6.0)


@row("morpheus65535/bazarr/pull/3163", JSON % "film.ts", starts=(2.5,))
def sound_that_starts_late_in_ts(folder):
    media(folder / "film.ts", clip(), delay=2.5, video=6.0)


@row("SubtitleEdit/subtitleedit/issues/9183", JSON % "film.mkv", text="", says=("film.mkv", "--track", "jpn", "eng"))
def a_film_with_two_languages_says_which_is_read(folder):
    media(folder / "film.mkv", 0 * clip(), clip(), codec="flac", rate=16000, languages=("jpn", "eng"))


@row("absadiki/subsai/issues/97", JSON % "film.mkv --track 1", text=SPOKEN)
def the_second_language_of_a_film(folder):
    media(folder / "film.mkv", 0 * clip(), clip(), codec="flac", rate=16000, languages=("jpn", "eng"))


@row("URUWorks/TeroSubtitler/issues/117", JSON % "film.mkv --track 2", code=3, says=("film.mkv", "track"))
def a_language_that_the_film_does_not_have(folder):
    media(folder / "film.mkv", clip(), clip(), codec="flac", rate=16000, languages=("jpn", "eng"))


OUT = "transcribe {words} in --format txt --out out"


@row("alphacep/vosk-api/issues/1192", OUT, files=("Belladonna's Red Snare (1) [x] #2 é.txt",))
def a_name_with_apostrophe_brackets_and_spaces(folder):
    wav(folder / "in" / "Belladonna's Red Snare (1) [x] #2 é.wav")


@row("RamonUnch/in_opus/issues/14", OUT, files=("🎵 der-frühe-vogel.txt",))
def a_name_with_an_emoji(folder):
    wav(folder / "in" / "🎵 der-frühe-vogel.ogg")


@row("birdnet-team/BirdNET-Analyzer/pull/635", OUT, files=("a.txt",))
def hidden_files_of_macos(folder):
    wav(folder / "in" / "a.wav")
    (folder / "in" / "._a.wav").write_bytes(b"\0\5\x16\7" + bytes(100))
    (folder / "in" / ".DS_Store").write_bytes(bytes(10))


@row("WEIFENG2333/VideoCaptioner/issues/51", OUT, files=("one_a.txt", "two_a.txt"))
def the_same_name_in_two_folders(folder):
    wav(folder / "in" / "one" / "a.wav")
    wav(folder / "in" / "two" / "a.wav")


@row("SYSTRAN/faster-whisper/issues/89", OUT, code=3, files=("good.txt",), says=("broken.mp3",))
def one_broken_file_among_good_ones(folder):
    wav(folder / "in" / "good.wav")
    (folder / "in" / "broken.mp3").write_bytes(b"<html>404</html>" * 100)


@row(
    "meizhong986/WhisperJAV/issues/194",
    OUT,
    files=("book.txt", "film.txt", "phone.txt", "voice.txt"),
    says=("notes.pages",),
)
def every_format_in_a_folder_is_found(folder):
    wav(folder / "in" / "voice.oga", format="OGG")
    media(folder / "in" / "book.m4b", clip())
    media(folder / "in" / "phone.3gp", clip())
    media(folder / "in" / "film.AVI", clip(), codec="libmp3lame", video=1.0)
    (folder / "in" / "notes.pages").write_text("no audio")


@row("pyannote/pyannote-audio/issues/1969", "diarize {diarizer} short.wav --format json")
def a_diarizer_and_half_a_second(folder):
    wav(folder / "short.wav", clip()[:8000])


@row("pyannote/pyannote-audio/issues/1611", "diarize {diarizer} up.wav --format json")
def diarized_speech_ends_with_the_audio(folder):
    wav(folder / "up.wav", talk(0.3, 0.3), samplerate=44100)


@row("NVIDIA-NeMo/Speech/issues/8100", "diarize {diarizer} 'my vocals.wav'", says=("SPEAKER my_vocals 1 ",))
def rttm_of_a_name_with_a_space(folder):
    wav(folder / "my vocals.wav")


@row("seanap/auto-m4b/issues/31", OUT, files=("LOUD.txt",))
def a_suffix_in_capital_letters(folder):
    wav(folder / "in" / "LOUD.MP3", format="MP3")


CALL = "transcribe {words} call.wav --channel 0 --format txt --out out && transcribe {words} call.wav --channel 1 %s"


@row(
    "Purfview/whisper-standalone-win/issues/115",
    CALL % "--format txt --out out",
    files=("call.channel0.txt", "call.channel1.txt"),
)
def both_sides_of_a_call_in_one_folder(folder):
    wav(folder / "call.wav", np.stack([clip(), clip()], 1))


ONE = "transcribe {words} a.wav --out out --format"


@row(
    "Purfview/whisper-standalone-win/issues/94", f"{ONE} txt && {ONE} txt,vtt --skip-existing", files=("a.txt", "a.vtt")
)
def a_format_that_an_earlier_call_did_not_write(folder):
    wav(folder / "a.wav")


@row(
    "cbro33/Faster-Whisper-XXL-GUI/issues/20",
    f"{ONE} srt && {ONE} srt --skip-existing",
    files=("a.srt",),
    says=("1 of 1",),
)
def a_second_call_skips_what_is_done(folder):
    wav(folder / "a.wav")


@row("meizhong986/WhisperJAV/issues/328", f"{ONE} srt", code=2, says=("a.srt",))
def subtitles_that_someone_wrote_by_hand_stay(folder):
    wav(folder / "a.wav")
    (folder / "out").mkdir()
    (folder / "out" / "a.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nby hand\n")


SIDE = "diarize {diarizer} call.wav --out out --channel"


@row("alphacep/vosk-api/issues/485", f"{SIDE} 0 && {SIDE} 1", files=("call.channel0.rttm", "call.channel1.rttm"))
def speakers_of_both_sides_of_a_call(folder):
    wav(folder / "call.wav", np.stack([clip(), clip()], 1))


@row("URUWorks/TeroSubtitler/issues/117", JSON % "a.wav --track 1", code=3, says=("a.wav", "1 audio track"))
def a_track_of_a_file_that_has_one(folder):
    wav(folder / "a.wav")


@row("alphacep/vosk-api/issues/485", JSON % "a.wav --channel left", code=2, says=("--channel", "whole number", "left"))
def a_channel_by_its_name(folder):
    wav(folder / "a.wav")
