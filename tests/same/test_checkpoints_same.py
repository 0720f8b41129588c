"""A run that goes on with 4, 2, 3 and 1 processes, each of which has written its own rows, is the run that did not."""

import json
import re

import pytest
from safetensors import safe_open

SHARD = "train.shard=true"
STEP = ["data.max_items=1", "optim.eps=1e-3"]
"""A step takes twelve batches of one record, which every number of the processes divides."""
AVERAGE = ["train.eval_every=1", "train.save_every=1", "train.use=average", "train.keep_best=3"]
RUNS = {"full": (False, ["train.ema=0.5", *STEP]), "lora": (True, [*STEP, *AVERAGE])}


def files(folder, step, kind) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints" / f"step-{step:06d}" / "resume").glob(f"{kind}*"))


@pytest.mark.parametrize(
    ("family", "kinds", "counts"),
    [
        ("ctc", ("full",), (3, 1)),
        *(
            pytest.param(f, ("full", "lora"), (4, 2, 3, 1), marks=pytest.mark.slow)
            for f in ("voxtral", "whisper", "ctc", "qwen3_asr")
        ),
    ],
)
@pytest.mark.long
def test_any_number_of_processes_goes_on(family, kinds, counts, real_family, together, same_run):
    """Full with a moving average; adapters with the mean of the best checkpoints, which other numbers wrote."""
    runs, steps = real_family.runs, len(counts)

    def train(kind: str, name: str, *options: str) -> list:
        lora, settings = RUNS[kind]
        path = real_family(f"{family}-{kind}-{name}-{steps}", family, lora)
        return ["train", path, *settings, "train.keep=9", *options]

    straight = [train(kind, "straight", "train.accumulate=12", f"train.steps={steps}") for kind in kinds]
    for step, processes in enumerate(counts, 1):
        options = [f"train.accumulate={12 // processes}", f"train.steps={step}", *[SHARD] * (processes > 1)]
        commands = [train(kind, "moved", *options) for kind in kinds]
        together([*commands, *(straight if processes == 1 else [])], processes)
    for kind in kinds:
        moved = runs / f"{family}-{kind}-moved-{steps}"
        same_run(runs / f"{family}-{kind}-straight-{steps}", moved)
        log = (moved / "log.txt").read_text()
        assert re.findall(r"(\d|one) process(?:es)? (?:\(FSDP2|on cpu)", log) == [
            str(c) if c > 1 else "one" for c in counts
        ]
        for step, processes in enumerate(counts, 1):
            for part in ("weights", "optimizer", *["ema"] * (kind == "full")):
                expected = [f"{part}-{r + 1:05d}-of-{processes:05d}.safetensors" for r in range(processes)]
                assert files(moved, step, part) == (expected if processes > 1 else [f"{part}.safetensors"])
            meta = json.loads((moved / "checkpoints" / f"step-{step:06d}" / "meta.json").read_text())
            assert meta["format"] == (1 if processes == 1 else 2)


@pytest.mark.long
def test_every_process_writes_its_share(real_family, together):
    """Copies (DDP) are written once, spread over the processes; what is divided by those that have it."""
    runs = real_family.runs
    commands = [
        ["train", real_family(f"share-{way}", "qwen3_asr"), "train.steps=1", f"train.shard={way == 'fsdp'}".lower()]
        for way in ("ddp", "fsdp")
    ]
    together(commands, 2)
    for way in ("ddp", "fsdp"):
        folder = runs / f"share-{way}" / "checkpoints" / "step-000001"
        names, sizes = [], []
        for path in sorted((folder / "resume").glob("weights-*")):
            sizes.append(path.stat().st_size)
            with safe_open(path, "pt") as file:
                names.append(set(file.keys()))
        assert len(sizes) == 2 and max(sizes) < 1.2 * min(sizes)
        assert names[0].isdisjoint(names[1]) == (way == "ddp")
        exported = folder / "export" / "model.safetensors"
        final = runs / f"share-{way}" / "export" / "model.safetensors"
        with safe_open(exported, "pt") as one, safe_open(final, "pt") as other:
            assert set(one.keys()) == set(other.keys())
            assert all(one.get_tensor(n).equal(other.get_tensor(n)) for n in one.keys())  # noqa: SIM118
        assert not list((runs / f"share-{way}").rglob(".*.tmp"))
