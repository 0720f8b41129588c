"""What the page shows of runs, computed from run folders that are written here as `stentor train` writes them."""

import json
import os
import re
import time
from operator import attrgetter

import pytest

from stentor.studio import files
from stentor.studio.runs import detached, jobs, machine, watch
from stentor.studio.runs import progress as courses
from stentor.studio.runs.jobs import Job
from stentor.studio.runs.progress import progress_of


@pytest.fixture
def run(projects):
    """Makes a run folder; called with what its files hold."""

    def make(name="first", state=0, rows=(), events=(), samples=(), results=None, **ending):
        folder = projects.runs / name
        folder.mkdir()
        files.write_json(folder / "studio.json", {"created": time.time()})
        files.write_json(folder / "ending.json", {"started": 100.0, "exit": state, **ending})
        for file, lines in (("metrics", rows), ("events", events), ("samples", samples)):
            append(folder / f"{file}.jsonl", *lines)
        if results:
            files.write_json(folder / "results.json", results)
        return Job(folder)

    courses.forget_progress()
    return make


@pytest.fixture
def living():
    """Makes a run look alive: holds its lock, as its supervisor would."""
    held = []

    def hold(job):
        context = detached.exclusive(job.folder, "it lives already")
        context.__enter__()
        held.append(context)
        return lambda: held.pop().__exit__(None, None, None)

    yield hold
    for context in held:
        context.__exit__(None, None, None)


def append(path, *rows):
    with open(path, "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def started(total=1000, at=101.0, **extra):
    return {"time": at, "event": "started", "step": 0, "total_steps": total, "world": 1, **extra}


def steps(*pairs, **extra):
    return [{"step": n, "time": t, "train/loss": 5.0 / n, "lr": 1e-3, **extra} for n, t in pairs]


def answer(step, name, reference, hypothesis, **output):
    return {
        "step": step,
        "set": "held_out",
        "id": name,
        "seconds": 1.5,
        "reference": {"text": reference},
        "output": {"text": hypothesis, **output},
        "record": {"id": name, "audio_path": "/x/a.wav", "language": "en"},
    }


def text(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_a_running_run_tells_step_time_left_and_speed(projects, run, living):
    rows = steps(*((n, 101.0 + 2 * n) for n in range(10, 101, 10)), audio_seconds_per_second=73.4)
    job = run(state=None, events=[started()], rows=rows)
    living(job)
    view = watch.view(projects, job)
    assert "Training: step 100 of 1000." in text(view.status)
    # 900 steps of two seconds each.
    assert "about 30 minutes" in text(view.status) and "73 s of audio per second" in text(view.status)
    assert view.can == {"stop"} and "This computer" in text(view.memory)
    assert 'data-state="running" data-step="100"' in view.status and "report" not in view.status
    assert watch.choices(projects) == [("first · running", "first")]


def test_time_left_is_robust(run):
    def left(*pairs, total=1000):
        job = run(f"r{len(pairs)}-{total}", events=[started(total)], rows=steps(*pairs))
        return progress_of(job.folder).seconds_left()

    assert left() is None and left((10, 120.0)) is None
    steady = [(n, 100.0 + n) for n in range(10, 210, 10)]
    assert left(*steady) == pytest.approx(800)
    # The machine slept for a night; an evaluation after each tenth row takes its time each time.
    assert left(*[(n, t + (30_000 if n > 100 else 0)) for n, t in steady], (210, 30_310.0)) == pytest.approx(790)
    slow = [(n, 100.0 + n + 60 * (n // 50)) for n in range(10, 1000, 10)]
    assert left(*slow, total=2000) == pytest.approx(1010 * (980 + 60 * 19) / 980, rel=0.01)
    # Only the last rows count: it became twice as fast.
    quick = [(n, 100.0 + n) for n in range(1, 200)] + [(n, 299.0 + (n - 199) / 2) for n in range(200, 400)]
    assert left(*quick) == pytest.approx(601 / 2, rel=0.01)


def test_each_state_has_its_sentence_and_buttons(projects, run, living):
    def standing(job):
        courses.forget_progress()
        now = jobs.state(job)
        return now.state, now.sentence, watch.possible(job, now)

    job = run(state=None)
    end = living(job)
    assert standing(job) == ("waiting", "Getting ready: reading the data and building the model.", {"stop"})
    append(job.folder / "events.jsonl", started(60), {"time": 150.0, "event": "saved", "step": 60})
    state, sentence, _ = standing(job)
    assert state == "running" and "Measuring what was learned" in sentence
    (job.folder / "stop").touch()
    assert standing(job)[0::2] == ("stopping", frozenset())
    os.utime(job.folder / "stop", (0, time.time() - 2 * watch.PATIENCE))
    assert standing(job)[2] == {"kill"}
    end()
    # Its supervisor was killed, so there is no exit code: the run's own words decide.
    assert standing(job)[0] == "stopped"
    (job.folder / "stop").unlink()
    state, sentence, buttons = standing(job)
    assert state == "failed" and "switched off" in sentence and buttons == {"resume", "retry", "delete"}
    append(job.folder / "events.jsonl", {"time": 160.0, "event": "failed", "step": 60, "error": "The disk is full."})
    assert standing(job)[:2] == ("failed", "The disk is full.")
    append(job.folder / "events.jsonl", {"time": 170.0, "event": "stopped", "step": 60})
    assert standing(job)[0] == "stopped" and "Everything is saved" in standing(job)[1]
    append(job.folder / "events.jsonl", {"time": 180.0, "event": "finished", "step": 60, "eval": {}})
    assert standing(job)[0] == "finished" and standing(job)[2] == {"retry", "delete"} and jobs.word(job) == "finished"
    # What an earlier attempt said counts no more.
    files.write_json(job.folder / "ending.json", {"started": 500.0})
    assert standing(job)[0] == "failed" and jobs.word(job) == "failed"


def test_stages(projects, run, living):
    job = run(
        state=None,
        events=[
            {"time": 101.0, "event": "stage", "stage": 1, "of": 2},
            started(10, stage="1"),
            {"time": 110.0, "event": "finished", "step": 10, "stage": "1"},
            {"time": 111.0, "event": "stage", "stage": 2, "of": 2},
            started(20, 112.0, stage="2"),
        ],
        rows=[*steps((10, 109.0), stage="1"), *steps((2, 113.0), (4, 115.0), stage="2")],
    )
    living(job)
    now = jobs.state(job)
    assert (now.step, now.total) == (4, 20) and "part 2 of 2" in now.sentence
    assert progress_of(job.folder).seconds_left() == pytest.approx(16)


def test_a_finished_run_shows_its_results(projects, run):
    score = {"value": 0.083, "low": 0.05, "high": 0.12, "errors": 83, "total": 1000}
    results = {
        "eval": {"held_out": {"wer": score}},
        "before": {"held_out": {"wer": {**score, "value": 0.25}}},
        "change": {},
        "seconds": 754.0,
        "steps": 400,
    }
    job = run(events=[started(400)], results=results)
    (job.folder / "report.html").write_text("<p>report")
    (job.folder / "export").mkdir()
    status = watch.view(projects, job).status
    assert "25.00 % → 8.30 %" in text(status) and "5.00–12.00 %" in text(status)
    assert 'href="/studio/runs/first/report"' in status and 'href="/studio/download/run/first" download' in status
    *row, score = watch.row(job)
    assert row == ["first", "finished", "400", "12 min 34 s"]
    assert (score.metric, score.set, score.before, score.after) == ("WER", "held_out", "25.00 %", "8.30 %")
    assert score.after_interval == "5.00–12.00 %"


def test_a_run_that_got_worse_says_so_first(projects, run):
    def rates(before, after, **change):
        return {"before": {"held_out": {"wer": before}}, "eval": {"held_out": {"wer": after}}, "change": change}

    low, high = {"value": 0.12, "low": 0.1, "high": 0.15}, {"value": 0.98, "low": 0.9, "high": 1.0}
    exploded = [started(10), {"time": 102.0, "event": "exploded", "step": 10, "first": 4.5, "last": 2598.0}]
    paired = {"held_out": {"wer": {"value": 7.0, "low": -0.1, "high": 9.0}}}
    run("paired", results=rates(low, high, **paired))
    run("better", results=rates(high, low))
    run("resumed", events=[*exploded, started(10)], results=rates(high, low))
    job = run("worse", results=rates(low, high))
    (job.folder / "resolved.yaml").write_text("optim: {lr: 3.0}")
    run("exploded", events=exploded, results={"eval": {}})
    words = {job.name: jobs.word(job) for job in jobs.jobs(projects)}
    assert words == dict.fromkeys(("paired", "better", "resumed"), "finished") | dict.fromkeys(
        ("worse", "exploded"), "worse"
    )
    assert ("worse · got worse", "worse") in watch.choices(projects)
    status = watch.view(projects, job).status
    assert 'class="badge worse"' in status and "Finished" not in status
    assert "WER on held_out 12.00 % before, 98.00 % after" in text(status) and "(1 instead of 3)" in text(status)
    assert "was 4.5 at the beginning and is 2,598 at the end" in jobs.state(jobs.find(projects, "exploded")).sentence


def test_runs_are_compared(projects, run):
    evaluated = [{"step": n, "time": 1.0, "eval/held_out/wer": w} for n, w in ((0, 0.9), (100, 0.4))]
    one = run("one", events=[started()], rows=[*steps((50, 150.0), (100, 200.0)), *evaluated])
    two = run("two", state=1, said="out of memory", events=[started()], rows=[*steps((50, 140.0)), *evaluated[:1]])
    view = watch.view(projects, one, [two, one])
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', view.curves, re.DOTALL)
    assert [re.findall(r"</svg>(\w+) ", legend) for legend in legends] == [["one", "two"]] * 3
    assert "WER" in view.curves and "Training loss" in view.curves and "Learning rate" in view.curves
    table = text(view.table)
    assert "one finished" in table and "two failed" in table and "90.00 %" in table and "40.00 %" in table
    assert watch.view(projects, one).table == ""


def test_a_new_run_of_a_deleted_name_shows_nothing_of_the_old(projects, run):
    for value, hypothesis in ((5.0, "before"), (1.0, "afterwards")):
        loss = [{"step": n, "time": 101.0 + n, "train/loss": value / n} for n in (1, 2)]
        job = run(rows=loss, events=[started()], samples=[answer(10, "a", "one", hypothesis)])
        curves, samples = watch.curves([job]), watch.samples(job)
        assert hypothesis in samples and ("before" in samples) == (hypothesis == "before")
        if value == 5.0:
            old = curves
            jobs.delete(projects, job)
    assert curves != old


def test_samples_show_what_differs_with_players(projects, run):
    rows = [answer(0, "a", "one two", ""), answer(10, "a", "one two", "one too"), answer(20, "a", "one two", "one two")]
    job = run(rows=steps((1, 102.0)), events=[started()], samples=rows)
    shown = watch.samples(job)
    assert "all 2 words right" in text(shown) and "step 20" in text(shown)
    assert 'src="/studio/runs/first/sound?set=held_out&amp;id=a"' in shown
    append(job.folder / "samples.jsonl", answer(30, "b/&<", "one two", "<img src=x onerror=alert(1)>"))
    shown = watch.samples(job)
    assert "<img" not in shown and "&lt;img" in shown and "id=b%2F%26%3C" in shown and "step 30" in text(shown)
    append(job.folder / "samples.jsonl", answer(40, "c", "hello", None, audio={"file": "samples/step-000040/s/c.wav"}))
    assert 'src="/studio/runs/first/spoken/samples/step-000040/s/c.wav"' in watch.samples(job)
    assert "after the first evaluation" in watch.samples(run("none"))


def test_words_of_a_run_are_never_html(projects, run):
    job = run(state=1, said="<script>alert(1)</script>", events=[started()], rows=steps((1, 102.0)))
    assert "<script" not in watch.view(projects, job).status
    assert "&lt;script&gt;" in watch.view(projects, job).status


def test_a_look_reads_only_what_is_new(projects, run, living, monkeypatch):
    job = run(state=None, events=[started()], rows=steps((1, 102.0), (2, 103.0)))
    living(job)
    first = watch.view(projects, job)
    parsed = []
    loads = json.loads
    monkeypatch.setattr("stentor.studio.runs.progress.json.loads", lambda line: parsed.append(line) or loads(line))
    shown = attrgetter("status", "curves", "samples", "log")
    assert shown(watch.view(projects, job)) == shown(first)
    assert not [line for line in parsed if b"train/loss" in (line if isinstance(line, bytes) else b"")]
    append(job.folder / "metrics.jsonl", *steps((3, 104.0)))
    assert 'data-step="3"' in watch.view(projects, job).status
    assert sum(b"train/loss" in line for line in parsed if isinstance(line, bytes)) == 1


def test_drawing_takes_only_its_share_of_time(run, living, monkeypatch):
    job = run(state=None, events=[started()], rows=steps((1, 102.0)))
    end = living(job)
    clock = [1000.0, 0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])

    def costly(*arguments):
        clock[1] += 0.5
        return f"drawn at {clock[1]}"

    monkeypatch.setattr(watch.time, "thread_time", lambda: clock[1])
    monkeypatch.setattr(watch, "_drawn", costly)
    assert watch.curves([job]) == "drawn at 0.5"
    append(job.folder / "metrics.jsonl", *steps((2, 103.0)))
    clock[0] += 0.5 / watch.SHARE - 1
    assert watch.curves([job]) == "drawn at 0.5"
    clock[0] += 2
    assert watch.curves([job]) == "drawn at 1.0"
    # How it ended is always drawn, at once.
    append(job.folder / "metrics.jsonl", *steps((3, 104.0)))
    assert watch.curves([job]) == "drawn at 1.0"
    end()
    assert watch.curves([job]) == "drawn at 1.5" and watch.curves([job]) == "drawn at 1.5"


def test_resumed_files_are_read_anew(run):
    job = run(events=[started()], rows=steps((1, 102.0), (2, 103.0), (3, 104.0)))
    assert progress_of(job.folder).numbers.values["train/loss"][0] == [1, 2, 3]
    # A resumed run drops the rows that it will repeat.
    append(job.folder / "new", *steps((1, 102.0)))
    os.replace(job.folder / "new", job.folder / "metrics.jsonl")
    assert progress_of(job.folder).numbers.values["train/loss"][0] == [1]


def test_memory_of_a_run():
    bars = machine.bars({"memory/rss_gb": 1.25, "memory/workers_gb": 0.5}, None)
    assert [b.name for b in bars] == ["This run", "This computer"] and bars[0].text == "1.8 GB"
    bars = machine.bars({"memory/rss_gb": 1.0, "memory/cuda_reserved_gb": 20.0, "memory/cuda_free_gb": 60.0}, 0.9)
    assert bars[1].text == "20.0 of 80 GB, 90 % busy" and bars[1].share == 0.25


def test_the_log_of_a_run_without_a_keeper(run):
    job = run(state=None)
    (job.folder / "output.txt").write_text("as it was printed\n")
    (job.folder / "log.txt").write_text("as it was written down\n")
    assert jobs.log(job) == "as it was printed"
    os.utime(job.folder / "output.txt", (0, time.time() - 60))
    assert jobs.log(job) == "as it was written down"


# The files that a run's page links to ---------------------------------------------------------------------------------


def test_reports_are_served_as_strangers(client, run, projects):
    job = run()
    assert client.get("/studio/runs/first/report").status_code == 400
    (job.folder / "report.html").write_text("<script>alert(1)</script>")
    answer = client.get("/studio/runs/first/report")
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200 and policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "unsafe-inline" not in policy.split("script-src")[1] and "sha256-" in policy.split("script-src")[1]
    assert "allow-same-origin" not in policy and answer.headers["x-content-type-options"] == "nosniff"
    (job.folder / "report.html").unlink()
    (job.folder / "report.html").symlink_to("/etc/hostname")
    assert client.get("/studio/runs/first/report").status_code == 400
    assert client.get("/studio/runs/..%2f..%2fx/report").status_code in (400, 404)


def test_only_own_recordings_are_played(client, run, projects, corpus, tmp_path):
    audio_folder = projects.folder / "datasets" / "mine" / "audio"
    audio_folder.mkdir(parents=True)
    clip = (corpus / "dev0.wav").read_bytes()
    (audio_folder / "a.wav").write_bytes(clip)
    (tmp_path / "other.wav").write_bytes(clip)
    (audio_folder / "link.wav").symlink_to(tmp_path / "other.wav")

    def row(name, path, **part):
        record = {"id": name, "audio_path": str(path), **part}
        return {"step": 1, "set": "held out", "id": name, "reference": {}, "output": {}, "record": record}

    run(
        samples=[
            row("a", audio_folder / "a.wav"),
            row("part", audio_folder / "a.wav", start=0.1, duration=0.2),
            row("other", tmp_path / "other.wav"),
            row("link", audio_folder / "link.wav"),
            row("etc", "/etc/passwd"),
            row("nul", "a\0b"),
            row("up", "../other.wav"),
        ]
    )

    def get(name):
        return client.get("/studio/runs/first/sound", params={"set": "held out", "id": name})

    full, part = get("a"), get("part")
    assert full.status_code == 200 and full.headers["content-type"] == "audio/wav" and full.content[:4] == b"RIFF"
    assert len(part.content) == 44 + 2 * 3200 < len(full.content)
    for name in ("other", "link", "etc", "nul", "up", "unknown"):
        assert get(name).status_code == 400, name


def test_only_speech_of_the_run_is_played(client, run, corpus):
    job = run()
    place = job.folder / "samples" / "step-000001" / "set"
    place.mkdir(parents=True)
    (place / "a.wav").write_bytes((corpus / "dev0.wav").read_bytes())
    (job.folder / "secret.wav").write_bytes(b"x")

    def get(path, **headers):
        return client.get(f"/studio/runs/first/spoken/{path}", headers=headers)

    assert get("samples/step-000001/set/a.wav").status_code == 200
    assert get("samples/step-000001/set/a.wav", Range="bytes=0-3").content == b"RIFF"
    for path in ("secret.wav", "samples/%2e%2e/secret.wav", "run.yaml", "samples/none.wav", "%2fetc%2fpasswd"):
        assert get(path).status_code in (400, 404), path
