"""Token shards, as `stentor prepare tokens` and OmniVoice write them: what is read, what is counted, in which order."""

import gzip
import io
import json
from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest

from codec_shards import SumTokens, npy, write_tar
from data_plans import dataset, facts, starts_at
from stentor.config.load import parse_source
from stentor.data.codec_tokens import AcceptsCodecTokens, has_codes, load_codes
from stentor.data.cut import UnusableRecord, custom_of, language_of, record_from_cut, text_of
from stentor.dataloading.dataset_report import check
from stentor.dataloading.loader import BatchDataset, batches
from stentor.dataloading.section import Data
from stentor.errors import ConfigError, DataError
from stentor.sources import shards as shards_module
from stentor.sources.shards import STREAM_FROM, Shards


def codes_of(name, frames, codebooks=8):
    return np.random.default_rng(abs(hash_of(name))).integers(0, 1024, (codebooks, frames)).astype(np.int16)


def hash_of(name):
    return int.from_bytes(name.encode(), "little") % 2**63


def frames_of(i):
    return 20 + 7 * (i % 9)


@pytest.fixture
def shards(tmp_path):
    """Writes shards with `counts` samples into a folder like OmniVoice's and answers the list of them."""

    def make(counts=(5, 5, 5), folder="tokens", absolute=True, **label):
        root = tmp_path / folder
        for part in ("audios", "txts"):
            (root / part).mkdir(parents=True, exist_ok=True)
        lines = []
        for s, count in enumerate(counts):
            tar, labels = root / "audios" / f"shard-{s:06d}.tar", root / "txts" / f"shard-{s:06d}.jsonl"
            names = [f"{folder}{s}-{i}" for i in range(count)]
            write_tar(tar, {f"{n}.npy": npy(codes_of(n, frames_of(i))) for i, n in enumerate(names)})
            about = [
                {
                    "id": n,
                    "audio_path": f"/raw/{n}.flac",
                    "text": f"text {n}",
                    "language_id": "sv",
                    "num_tokens": frames_of(i),
                    "audio_duration": frames_of(i) / 25,
                    **label,
                }
                for i, n in enumerate(names)
            ]
            labels.write_text("".join(json.dumps(a, ensure_ascii=False) + "\n" for a in about))
            a, b = (tar, labels) if absolute else (tar.relative_to(root), labels.relative_to(root))
            lines.append(f"{a} {b} {count} {sum(x['num_tokens'] for x in about) / 25:.3f}\n")
        (root / "data.lst").write_text("".join(lines))
        return root / "data.lst"

    return make


def read(path, **fields):
    return Shards(type="shards", path=path, **fields)


def names_of(cuts):
    return [c.id for c in cuts]


EVERYONE = [f"tokens{s}-{i}" for s in range(3) for i in range(5)]


def test_shards_of_omnivoice_load_as_they_are(shards):
    extras = {"instruct": "female, low pitch", "text_pinyin": "ni3 hao3", "clean_start_token_idx": 4}
    cuts = list(read(shards(**extras)).cuts())
    assert names_of(cuts) == EVERYONE
    for i, cut in enumerate(cuts):
        assert has_codes(cut)
        assert (load_codes(cut, 8, 1024) == codes_of(cut.id, frames_of(i % 5))).all()
        assert cut.duration == pytest.approx(frames_of(i % 5) / 25)
        assert (text_of(cut), language_of(cut)) == (f"text {cut.id}", "sv")
        custom = custom_of(cut)
        assert {k: custom[k] for k in extras} == extras
        assert (custom["num_tokens"], custom["audio_duration"]) == (frames_of(i % 5), frames_of(i % 5) / 25)
    record = record_from_cut(cuts[0])
    assert record["audio_path"] is None and record["codes"]["codebooks"] == 8
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize("way", ["list", "folder", "relative", "moved", "tar", "tars", "two lists"])
def test_a_path_is_a_list_a_folder_a_tar_file_or_several(shards, tmp_path, way):
    path = shards(absolute=way != "relative")
    expected = EVERYONE
    if way == "folder":
        path = path.parent
    elif way == "moved":
        path = path.parent.rename(tmp_path / "elsewhere") / "data.lst"
    elif way == "tar":
        path, expected = path.parent / "audios" / "shard-000001.tar", EVERYONE[5:10]
    elif way == "tars":
        path = path.parent / "audios"
    elif way == "two lists":
        path, expected = [path, shards((2,), "more")], [*EVERYONE, "more0-0", "more0-1"]
    assert names_of(read(path).cuts()) == expected


def test_labels_may_lie_beside_and_be_gzipped(tmp_path):
    write_tar(tmp_path / "a b.tar", {"x.1.npy": npy(codes_of("x", 30))})
    with gzip.open(tmp_path / "a b.jsonl.gz", "wt") as file:
        file.write(json.dumps({"id": "x.1", "text": "hello", "audio_duration": 1.2}) + "\n")
    (tmp_path / "data.lst").write_text("a b.tar a b.jsonl.gz 1 1.2\n")
    for path in (tmp_path, tmp_path / "a b.tar"):
        (cut,) = read(path).cuts()
        assert cut.id == "x.1" and custom_of(cut)["num_tokens"] == 30


def test_without_a_duration_the_frames_tell_it(shards):
    path = shards((2,), audio_duration=None)
    assert [c.duration for c in read(path, frame_rate=50).cuts()] == pytest.approx([20 / 50, 27 / 50])


def test_the_same_id_twice_is_numbered_in_a_list(shards):
    path = shards((2,))
    twice = read([path, path])
    assert names_of(twice.cuts()) == ["tokens0-0", "tokens0-1", "tokens0-0#2", "tokens0-1#2"]


def test_where_limit_and_language_work_as_everywhere(shards):
    assert names_of(read(shards(), where={"text": ["text tokens1-2"]}).cuts()) == ["tokens1-2"]
    assert names_of(read(shards(), skip=4, limit=2).cuts()) == ["tokens0-4", "tokens1-0"]


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "shard.tar",
            r"not a list of shards: each line must be `TAR LABELS.jsonl SAMPLES SECONDS`. Wrong lines:\n  .*:1: sh",
        ),
        ("", "lists no shards"),
        ("gone/a.tar gone/a.jsonl 5 1.0", "none of its 1 shards exists, such as .*gone/a.tar"),
    ],
)
def test_a_list_of_nothing_is_refused(tmp_path, line, message):
    (tmp_path / "data.lst").write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        list(read(tmp_path).cuts())


def test_no_list_and_no_labels(tmp_path):
    with pytest.raises(DataError, match="neither a list of shards"):
        list(read(tmp_path).cuts())
    with pytest.raises(DataError, match="does not exist"):
        list(read(tmp_path / "data.lst").cuts())
    write_tar(tmp_path / "a.tar", {})
    with pytest.raises(DataError, match=r"a\.tar has no labels: a\.jsonl is expected next to it"):
        list(read(tmp_path).cuts())


def reasons(records):
    return Counter(r.reason for r in records if isinstance(r, UnusableRecord))


def test_a_shard_that_is_cut_off_gives_what_is_there(shards):
    path = shards()
    tar = path.parent / "audios" / "shard-000001.tar"
    tar.write_bytes(tar.read_bytes()[: 3 * 1024])
    records = list(read(path).cuts())
    lost = [r for r in records if isinstance(r, UnusableRecord)]
    assert len(records) == 15 and 2 <= len(lost) <= 4
    assert reasons(records) == {"truncated": len(lost)}
    assert all("shard-000001.tar, which is cut off after 3,072 bytes, inside of 'tokens1-" in r.message for r in lost)
    assert lost[0].message.startswith(lost[0].id)


def test_a_shard_that_is_damaged_or_compressed(shards):
    path = shards()
    tar = path.parent / "audios" / "shard-000001.tar"
    tar.write_bytes(gzip.compress(tar.read_bytes()))
    records = list(read(path).cuts())
    assert reasons(records) == {"unreadable": 5}
    assert "which is compressed" in records[5].message


def test_a_missing_shard_counts_all_its_samples(shards):
    path = shards()
    (path.parent / "audios" / "shard-000001.tar").unlink()
    (path.parent / "txts" / "shard-000002.jsonl").unlink()
    records = list(read(path).cuts())
    assert reasons(records) == {"missing": 10}
    assert records[5].message.endswith("shard-000001.tar does not exist.") and records[5].id == "tokens1-0"
    assert "shard-000002.tar has no labels" in records[10].message


def test_labels_and_members_that_do_not_match(shards):
    path = shards()
    labels = path.parent / "txts" / "shard-000000.jsonl"
    lines = labels.read_text().splitlines()
    lines[1] = lines[1].replace("tokens0-1", "nobody")
    lines[2] = "{not json"
    lines[3] = '{"text": "no id"}'
    lines[4] = lines[4].replace('"num_tokens": 48', '"num_tokens": "many"')
    labels.write_text("\n".join(lines))
    records = list(read(path).cuts())
    assert reasons(records) == {"no_member": 1, "unreadable": 2, "empty": 1, "no_label": 3}
    messages = {r.reason: r.message for r in records if isinstance(r, UnusableRecord)}
    assert messages["no_member"].endswith("shard-000000.tar has no member for the label 'nobody'.")
    assert "no label for 'tokens0-" in messages["no_label"]
    assert "`num_tokens` must be a number of frames, got 'many'" in messages["empty"]


def test_members_that_are_not_wanted_are_left_out(tmp_path):
    write_tar(tmp_path / "a.tar", {"x.npy": npy(codes_of("x", 30)), "x.txt": b"x", "x.wav": b"not read", "notes": b"n"})
    (tmp_path / "a.jsonl").write_text('{"id": "x", "text": "x", "num_tokens": 30, "audio_duration": 1}\n')
    (cut,) = read(tmp_path).cuts()
    assert has_codes(cut)


def test_most_of_the_first_records_say_how_many_codebooks(shards):
    """So that a first record of another shape is the odd one, not all others."""
    path = shards()
    names = [f"tokens0-{i}" for i in range(5)]
    odd = {f"{n}.npy": npy(codes_of(n, frames_of(i), 4 if i == 0 else 8)) for i, n in enumerate(names)}
    write_tar(path.parent / "audios" / "shard-000000.tar", odd)
    assert {c.custom["codes"]["codebooks"] for c in read(path).cuts()} == {8}


def test_the_label_does_not_say_where_the_audio_is(shards):
    """Labels made from other sources may: the member is what counts."""
    path = shards((2,), voice={"text": "x"}, hub={"arrow": "gone"}, tar={}, codes=[1], made_noise={}, instruct="low")
    for cut in read(path).cuts():
        assert load_codes(cut).shape == (8, cut.custom["num_tokens"])
        assert set(custom_of(cut)) == {"num_tokens", "audio_duration", "instruct", "codes"}


def test_labels_that_are_no_text(shards):
    path = shards((3, 3))
    (path.parent / "txts" / "shard-000001.jsonl").write_bytes(b"\xff\xfe")
    records = list(read(path).cuts())
    assert reasons(records) == {"unreadable": 1, "no_label": 3} and "1.jsonl:1: not UTF-8" in records[3].message


def test_two_labels_of_one_id_are_counted_and_not_paired(shards):
    path = shards((4, 3))
    labels = path.parent / "txts" / "shard-000001.jsonl"
    one, two, three = map(json.loads, labels.read_text().splitlines())
    labels.write_text("".join(json.dumps(label) + "\n" for label in (one, {**two, "id": one["id"]}, three)))
    for stream in (False, True):
        records = list(read(path, stream=stream).cuts())
        assert reasons(records) == {"duplicate_id": 2, "no_label": 1}
        assert f"shard-000001.jsonl:2: 2 labels have the id '{one['id']}'" in records[5].message


def test_shards_of_audio_are_not_searched_for_codes(tmp_path, monkeypatch):
    from stentor.sources import shards

    for i in range(3):
        write_tar(tmp_path / f"{i}.tar", {f"{i}.wav": b"RIFF"})
        (tmp_path / f"{i}.jsonl").write_text(json.dumps({"id": str(i), "text": "x", "audio_duration": 1.0}) + "\n")
    opened = []
    index = shards.tar_index
    monkeypatch.setattr(shards, "tar_index", lambda path: opened.append(path.name) or index(path))
    read(tmp_path, stream=True).lane(0, 1, (0, 0))
    assert opened == ["0.tar"]


def test_it_is_a_stream_when_it_is_large(shards):
    path = shards()
    assert not read(path).streaming and read(path, stream=True).streaming
    text = path.read_text()
    path.write_text(text.replace(" 5 ", f" {STREAM_FROM // 2} "))
    assert read(path).streaming and not read(path, stream=False).streaming
    assert not read(path, limit=1000).streaming


class Reads(AcceptsCodecTokens):
    """What a family's processor says of itself."""

    sample_rate = 24000
    codebooks, vocabulary = 8, 1024


def planned(*sources, **fields):
    return dataset(Data(train=list(sources), **{"batch_tokens": 200, "window": 20, "layout": "packed", **fields}))


def price(cut, seconds):
    return cut.custom["num_tokens"]


def test_each_epoch_has_its_own_order(shards):
    path = shards((5,) * 8)
    source = read(path, stream=True)
    orders = [names_of(source.lane(0, 1, (seed, epoch)).cuts()) for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert orders[0] == orders[3]
    assert len({tuple(o) for o in orders}) == 3
    assert all(sorted(o) == sorted(names_of(source.cuts())) for o in orders)
    firsts = [list(dict.fromkeys(name.split("-")[0] for name in o)) for o in orders]
    assert firsts[0] != firsts[1], "the shards themselves come in another order"
    assert names_of(source.cuts()) == names_of(read(path).cuts()), "without an epoch, in that of the lists"


def test_several_shards_are_read_side_by_side(shards):
    path = shards((20,) * 6)

    def neighbours(mix):
        order = names_of(read(path, stream=True, mix=mix).lane(0, 1, (0, 0)).cuts())
        return sum(a.split("-")[0] == b.split("-")[0] for a, b in pairwise(order))

    assert neighbours(1) == 6 * 19
    assert neighbours(4) < 60


def test_the_first_so_many_are_the_same_in_each_epoch(shards):
    source = read(shards(), stream=True, limit=7)
    assert source.num_shards(8) == 1
    assert names_of(source.lane(0, 1, (0, 3)).cuts()) == EVERYONE[:7]


def test_lanes_hold_whole_shards_and_keep_them(shards):
    source = read(shards((3,) * 8), stream=True)
    assert source.num_shards(8) == 8 and source.num_shards(6) == 2
    lanes = [[set(names_of(source.lane(n, 4, (0, e)).cuts())) for n in range(4)] for e in range(3)]
    assert lanes[0] == lanes[1] == lanes[2]
    assert sorted(name for lane in lanes[0] for name in lane) == sorted(names_of(source.cuts()))


@pytest.mark.parametrize("taken", [5, 26, 33, 70])
def test_shards_that_were_read_are_not_opened_again(shards, monkeypatch, taken):
    """A resumed run opens those that were open, whose labels it reads again, and the ones after them."""
    opened = []
    read_lines = shards_module._lines
    monkeypatch.setattr(shards_module, "_lines", lambda path: opened.append(path) or read_lines(path))

    def plan():
        return planned(read(shards((5,) * 24), stream=True, mix=2), lanes=2, window=4, batch_tokens=90)

    sampler = plan().batch_sampler(price)
    batches_before = list(islice(sampler.batches(), taken + 12))
    straight = len(opened)
    starts = starts_at(taken, sampler)
    opened.clear()
    again = plan()
    later = again.batch_sampler(price)
    later.resume_at(starts)
    assert facts(later.shard(0, 1, 1, index=taken - 1), 12) == facts(batches_before[taken:])
    epochs_begun = 2 * (batches_before[-1].epoch - batches_before[taken].epoch)
    assert len(opened) <= 2 * (2 + 6) + epochs_begun * 2 and (taken < 20 or len(opened) < straight)


def test_more_workers_than_shards(shards):
    """Four workers on two shards give what one gives, every record once."""
    pairs = {}
    for workers in (0, 4):
        first = islice(planned(read(shards((9, 9)), stream=True)).batch_sampler(price).batches(), 6)
        reader = BatchDataset(SumTokens(type="given"), Reads(), None, seed=0)
        pairs[workers] = [(b.ids, b.inputs["sums"].tolist()) for _, b in batches(reader, first, workers, 2, False)]
    assert pairs[0] == pairs[4]
    frames = {f"tokens{s}-{i}": frames_of(i) for s in range(2) for i in range(9)}
    for names, sums in pairs[0]:
        assert sums == [int(codes_of(n, frames[n]).sum()) for n in names]


@pytest.mark.parametrize("repeat, passes", [(3, [3, 3]), (0.5, [0.5, 0.5]), (1.5, [1.5, 1.5])])
def test_a_stream_is_repeated(shards, repeat, passes):
    """As OmniVoice's `repeat`: so many copies in an epoch, told apart; a fraction takes others in the next epoch."""
    repeated = planned(read(shards(), stream=True, repeat=repeat))
    epochs = [[(i.cut.id, i.copy) for items in repeated.batch_sampler(price).epoch(e) for i in items] for e in range(2)]
    assert all(len(set(e)) == len(e) for e in epochs), "copies have their own random changes"
    both = Counter(name for epoch in epochs for name, _ in epoch)
    assert both == dict.fromkeys(EVERYONE, round(2 * repeat)), "exact over the epochs"
    if repeat == 3:
        assert [n for n, _ in epochs[0][:5]] != [n for n, _ in epochs[1][:5]]


def languages_of(train, epochs):
    items = [i for e in range(epochs) for b in train.batch_sampler(price).epoch(e) for i in b]
    return Counter(language_of(i.cut) for i in items), Counter(i.cut.id for i in items)


def test_so_many_hours_are_whole_shards(shards):
    """Always the same ones, from everywhere, as many as fit."""
    path = shards((5,) * 24)
    seconds = {line.split()[0]: float(line.split()[3]) for line in path.read_text().splitlines()}
    each = seconds.popitem()[1]
    source = read(path, stream=True, max_hours=7.5 * each / 3600)
    chosen = [shard.tar.name for shard in source.shards()]
    assert len(chosen) == 7 and chosen == sorted(chosen) and chosen[-1] > "shard-000012"
    train = planned(source, batch_tokens=90, lanes=2)
    _, names = languages_of(train, 2)
    assert names == {f"tokens{int(tar[6:12])}-{i}": 2 for tar in chosen for i in range(5)}
    assert source.expected() == 35
    assert len(read(path, stream=True, max_hours=0.1 * each / 3600).shards()) == 1
    assert len(read(path, stream=True, max_hours=99).shards()) == 24
    assert train.fingerprint() != planned(read(path, stream=True), batch_tokens=90, lanes=2).fingerprint()


def test_hours_that_a_list_does_not_say_are_refused(shards):
    path = shards()
    for fields in ({"limit": 3}, {"skip": 1}, {"where": {"language": "sv"}}):
        with pytest.raises(ConfigError, match=r"max_hours: .* not with `where`"):
            planned(read(path, stream=True, max_hours=0.001, **fields))
    path.write_text("".join(" ".join(line.split()[:3]) + "\n" for line in path.read_text().splitlines()))
    with pytest.raises(ConfigError, match=r"max_hours: only a stream of shards whose list has the seconds"):
        planned(read(path, stream=True, max_hours=0.001))


@pytest.mark.parametrize("way", ["summary", "language"])
def test_streams_of_shards_are_balanced_by_language(shards, way):
    """Three times the hours of one language: the other comes three times as often, by the summary of the folder or, of
    a list without one, by the source's language."""
    large, small = shards((6, 6, 6)), shards((6,), folder="small", language_id="fi")
    assert read(large).language_seconds() is None
    if way == "summary":
        for path, language, hours in ((large, "sv", 3.0), (small, "Finnish", 1.0)):
            (path.parent / "summary.json").write_text(json.dumps({"languages": {language: hours}}))
    languages = {"sv": "sv", "fi": "fi"} if way == "language" else {"sv": None, "fi": None}
    sources = [read(p, stream=True, language=languages[n]) for p, n in ((large, "sv"), (small, "fi"))]
    section = {"batch_tokens": 90, "window": 8}
    counts, names = languages_of(planned(*sources, **section, language_temperature=0.0), 2)
    assert counts == {"sv": 36, "fi": 36} and set(names.values()) == {2, 6}
    counts, names = languages_of(planned(*sources, **section, language_temperature=0.5), 4)
    assert counts["sv"] == 72 and counts["fi"] == pytest.approx(24 * 3**0.5, abs=3)
    assert {count for name, count in names.items() if name[0] == "s"} <= {6, 7}, "4 times the root of 3"


def test_hours_of_languages_are_those_of_the_shards_that_are_read(shards):
    path = shards((5,) * 8)
    (path.parent / "summary.json").write_text(json.dumps({"languages": {"sv": 3.0, "": 1.0}}))
    total = sum(float(line.split()[3]) for line in path.read_text().splitlines())
    whole = read(path, stream=True, language="Finnish").language_seconds()
    assert whole == pytest.approx({"fi": total})  # the source's own, also in place of the summary's
    half = read(path, stream=True, max_hours=total / 1.99 / 3600).language_seconds()
    assert half == pytest.approx({"sv": 0.375 * total, None: 0.125 * total})


def test_streams_come_by_their_sizes(shards):
    """A small set is spread over the whole epoch instead of being over early."""
    large, small = shards((40, 40)), shards((8,), "few")
    mixed = planned(read(large, stream=True), read(small, stream=True), window=1, batch_tokens=90, max_items=1)
    order = [i.cut.id.startswith("few") for items in mixed.batch_sampler(price).epoch(0) for i in items]
    assert sum(order) == 8 and sum(order[:44]) <= 7


def test_another_list_is_another_order(shards):
    path = shards()
    before = planned(read(path, stream=True)).fingerprint()
    assert before == planned(read(path, stream=True)).fingerprint()
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert before != planned(read(path, stream=True)).fingerprint()


def test_a_check_reads_codes(shards):
    """As `stentor prepare check tokens/data.lst` does."""
    path = shards((5, 5))
    wrong = {f"tokens1-{i}.npy": npy(codes_of("same", frames_of(i)) * (-1 if i == 2 else 1)) for i in range(4)}
    wrong["tokens1-4.npy"] = npy(codes_of("tokens0-4", frames_of(4)))
    write_tar(path.parent / "audios" / "shard-000001.tar", wrong)
    report = check({"tokens": parse_source(f"{path},language=sv")})
    assert report.totals["reasons"] == {"wrong_range": 1}
    assert [(f.kind, [r["id"] for r in f.records]) for f in report.findings if f.kind == "same_audio"] == [
        ("same_audio", ["tokens1-4"])
    ]
    assert {f.kind for f in report.findings}.isdisjoint({"quiet", "silence", "narrow", "clipped", "duration"})
    assert set(report.histograms) == {"length", "rate"}


def test_audio_in_shards_is_read_as_any_audio(tmp_path):
    import soundfile

    from stentor.data.load_audio import load_audio, load_record

    rng = np.random.default_rng(0)
    members, labels, sounds = {}, [], {}
    for name, suffix in (("a", "flac"), ("b", "wav"), ("c", "ogg"), ("d", "flac")):
        sounds[name] = (0.1 * rng.standard_normal(8000)).astype(np.float32)
        data = io.BytesIO()
        soundfile.write(data, sounds[name], 16000, format=suffix.upper())
        members[f"{name}.{suffix}"] = data.getvalue()
        labels.append({"id": name, "text": name, **({} if name == "a" else {"audio_duration": 0.5})})
    members["d.flac"] = members["d.flac"][:500]
    write_tar(tmp_path / "a.tar", members)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(x) + "\n" for x in labels))
    cuts = {c.id: c for c in read(tmp_path).cuts()}
    assert [c.duration for c in cuts.values()] == [0.5] * 4 and not any(has_codes(c) for c in cuts.values())
    for name in "ab":
        assert load_audio(cuts[name]) == pytest.approx(sounds[name], abs=1e-4)
        assert load_audio(cuts[name].truncate(offset=0.1, duration=0.2)) == pytest.approx(
            sounds[name][1600:4800], abs=1e-4
        )
        assert load_record(record_from_cut(cuts[name])) == pytest.approx(sounds[name], abs=1e-4)
    assert len(load_audio(cuts["c"], 8000)) == 4000
    with pytest.raises(DataError, match=r"a.tar:d.flac"):
        load_audio(cuts["d"])
