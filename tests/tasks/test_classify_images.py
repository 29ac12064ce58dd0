"""Rows of pixels, from files to answers: what is read, what is refused, and that the loop treats images like texts."""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from potstill.data.examples import store
from potstill.data.making import MakeContext
from potstill.data.row import Row
from potstill.data.rows import open_table
from potstill.errors import InputError
from potstill.inference.predict import predict
from potstill.measuring import speed as timing
from potstill.models.compression.masks import prunable, share_of_zeros
from potstill.models.student import load_student, save_student
from potstill.plugins.data.jitter import Jitter, moved
from potstill.plugins.data.without import Without
from potstill.recipe import plugins
from potstill.system.randomness import draw_uniform
from potstill.tasks.classify_images import ImageClassification
from potstill.tasks.label_matching import labels_of, make_task
from tests.support.commands import FAST, measurements, potstill
from tests.support.small_models import digits, small_images, small_model, write_csv, write_digits

QUICK = [*FAST, "--set", "batch=32", "--set", "optimizer.rate=0.01"]  # the last one counts
MNIST = Path(__file__).parents[3] / "shared/data/mnist"


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def as_idx(folder: Path) -> Path:
    images, labels = digits(40)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    return folder / "train-images-idx3-ubyte"


def as_idx_gz(folder: Path) -> Path:
    images, labels = digits(40)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return folder / "train-images-idx3-ubyte.gz"


def as_table(folder: Path, names: list[str] | None = None) -> Path:
    images, labels = digits(40)
    names = names or [f"{row}x{column}" for row in range(1, 9) for column in range(1, 9)]
    rows = [[label, *image.ravel()] for image, label in zip(images, labels, strict=True)]
    write_csv(folder / "train.csv", rows, ["label", *names])
    return folder / "train.csv"


FILES: dict[str, Callable[[Path], Path]] = {
    "idx": as_idx,
    "idx.gz": as_idx_gz,
    "npz": lambda folder: write_digits(folder / "train.npz", 40),
    "csv": as_table,
    "csv, numbered": lambda folder: as_table(folder, [f"pixel{number}" for number in range(64)]),
}


@pytest.mark.parametrize("kind", FILES)
def test_every_kind_of_file_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    table = open_table(FILES[kind](tmp_path))
    images, labels = digits(40)
    rows: list[Row] = list(table.rows())
    assert table.form == "pixels" and table.shape == (1, 8, 8)
    assert [row.text.encode("latin-1") for row in rows] == [image.tobytes() for image in images]
    assert [row.label for row in rows] == [str(label) for label in labels]
    task, _ = make_task(None, None, labels_of(table), None, "train", table.form, shape=table.shape)
    examples = store(table, task)
    assert len(np.unique(examples.keys)) == len(np.unique(images.reshape(40, -1), axis=0))
    assert examples.text(7)[0] == rows[7].text


def test_mnist_is_read_as_it_is_known() -> None:
    if not MNIST.is_dir():
        pytest.skip("needs ../shared/data/mnist")
    rows = list(open_table(MNIST / "t10k-images-idx3-ubyte.gz").rows())
    assert len(rows) == 10_000 and [row.label for row in rows[:5]] == ["7", "2", "1", "0", "4"]
    assert np.mean([sum(row.text.encode("latin-1")) for row in rows]) / 784 == pytest.approx(33.791, abs=0.001)


def test_channels_come_first_and_images_without_labels_are_unlabelled(tmp_path: Path) -> None:
    colours = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    np.savez(tmp_path / "c.npz", images=colours)
    table = open_table(tmp_path / "c.npz")
    row = next(table.rows())
    assert table.shape == (3, 4, 5) and row.label is None
    assert row.text.encode("latin-1") == np.moveaxis(colours[0], -1, 0).tobytes()


def broken(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def arrays(**named: np.ndarray) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        np.savez(folder / "x.npz", allow_pickle=True, **named)
        return folder / "x.npz"

    return write


def apart(folder: Path) -> Path:
    """More labels than images."""
    path = as_idx(folder)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(41)))
    return path


def pickled(folder: Path) -> Path:
    np.savez(folder / "x.npz", images=np.array([{}, None], object))
    return folder / "x.npz"


def lying(folder: Path) -> Path:
    """An npz whose header promises a million times what the archive holds."""
    import zipfile

    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 8, 8), }".ljust(117) + b"\n"
    with zipfile.ZipFile(folder / "x.npz", "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 64)
    return folder / "x.npz"


def wrong_cell(value: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = as_table(folder)
        lines = path.read_text().splitlines()
        lines[3] = re.sub(r",\d+$", f",{value}", lines[3])
        path.write_text("\n".join(lines))
        return path

    return write


IMAGES = digits(4)[0]
REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "not idx": (broken("a-images-idx3-ubyte", b"hello, world"), "this is not an idx file"),
    "empty": (broken("a-images-idx3-ubyte", b""), "this is not an idx file"),
    "cut header": (broken("a-images-idx3-ubyte", idx(IMAGES)[:9]), "header is truncated"),
    "cut": (broken("a-images-idx3-ubyte.gz", gzip.compress(idx(IMAGES)[:-1])), ":4: .*ends in number 4"),
    "cut, plain": (broken("a-images-idx3-ubyte", idx(IMAGES)[:-70]), "promises 256 bytes"),
    "more": (broken("a-images-idx3-ubyte", idx(IMAGES) + b"1"), "there are bytes after"),
    "damaged gzip": (broken("a-images-idx3-ubyte.gz", gzip.compress(idx(IMAGES))[:-9]), "gzip file is damaged"),
    "labels": (broken("a-labels-idx1-ubyte", idx(np.arange(5))), "contains labels, not images"),
    "floats": (broken("a-images-idx3-ubyte", b"\0\0\x0d\x03" + bytes(12)), "type 0x0d"),
    "none": (broken("a-images-idx3-ubyte", idx(IMAGES[:0])), "there are no rows"),
    "other labels": (apart, "has 41 labels"),
    "npz of floats": (arrays(images=IMAGES / 255.0), "astype"),
    "npz, no images": (arrays(labels=np.arange(4)), "no array of images"),
    "npz, more labels": (arrays(images=IMAGES, labels=np.arange(9)), "'labels' has 9 entries"),
    "npz, no square": (arrays(images=IMAGES[:, :7].reshape(4, -1)), "not a square"),
    "npz of objects": (pickled, "never opened"),
    "npz that lies": (lying, "not match its header"),
    "not npz": (broken("x.npz", b"PK\x03\x04 and nothing"), "not an npz file"),
    "pixel of 256": (wrong_cell("256"), "csv:4: '8x8' is '256'"),
    "no number": (wrong_cell("grey"), "csv:4: '8x8' is 'grey'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_malformed_files_are_refused_with_the_place(case: str, tmp_path: Path) -> None:
    write, words = REFUSED[case]
    path = write(tmp_path)
    with pytest.raises(InputError, match=words) as told:
        list(open_table(path).rows())
    assert str(told.value).startswith(str(tmp_path)) and ";" in str(told.value)


def test_the_command_tells_it_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken("a-images-idx3-ubyte", b"hello, world")(tmp_path)
    assert potstill("finetune", "--student", "mlp", "--train", tmp_path / "a-images-idx3-ubyte", *FAST) == 2
    assert "train-images-idx3-ubyte.gz" in capsys.readouterr().err


# whole runs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real digits, and a teacher that knows them."""
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder / "train.npz", 600)
    write_digits(folder / "test.npz", 300, 600)
    words = [
        "--train",
        folder / "train.npz",
        "--test",
        folder / "test.npz",
        "--epochs",
        "10",
        "--out",
        folder / "teacher",
    ]
    assert potstill("finetune", "--student", "mlp", "--set", "student.hidden=[64, 64]", *words, *QUICK) == 0
    assert measurements(folder / "teacher")["models"]["fine-tuned"]["quality"]["task"]["test"]["accuracy"] > 0.85
    return folder


def distilled(home: Path, out: Path, *more: str) -> int:
    data = ["--train", home / "train.npz", "--test", home / "test.npz"]
    shape = ["--student", "mlp", "--set", "student.hidden=[24, 24]", "--epochs", "4"]
    return potstill("distill", "--teacher", home / "teacher/student", *data, *shape, "--out", out, *QUICK, *more)


def test_images_are_distilled_remembered_reported_predicted_and_measured(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    out = tmp_path / "run"
    assert distilled(home, out, "--set", "method.temperature=5") == 0
    found = measurements(out)
    assert found["tasks"] == {"task": "classify"} and found["forms"] == {"task": "pixels"}
    assert found["models"]["distilled"]["quality"]["task"]["test"]["agreement"] > 0.8
    assert found["models"]["distilled"]["parameters"] == 64 * 24 + 24 + 24 * 24 + 24 + 24 * 10 + 10
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(found["disagreements"]["task"]) > 0
    card = (out / "student/README.md").read_text()
    assert "image-classification" in card and "AutoModelForImageClassification" in card
    assert distilled(home, tmp_path / "again", "--set", "method.temperature=5", "--no-baseline") == 0
    assert measurements(tmp_path / "again")["teacher_seconds"] == 0.0  # all answers were remembered
    assert measurements(tmp_path / "again")["hashes"]["distilled"] == found["hashes"]["distilled"]

    capsys.readouterr()
    assert potstill("predict", out / "student", home / "test.npz") == 0
    from_file = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    images, labels = digits(300, 600)
    from_arrays = list(predict(out / "student", [*images[:5], images[5].tolist(), json.dumps(images[6].tolist())]))
    assert from_file[:7] == from_arrays
    right = np.mean([int(one["label"]) == label for one, label in zip(from_file, labels, strict=True)])
    assert right == pytest.approx(found["models"]["distilled"]["quality"]["task"]["test"]["accuracy"])
    assert potstill("measure", out / "student", home / "teacher/student", "--data", home / "test.npz") == 0


def test_jitter_asks_the_teacher_live(home: Path, tmp_path: Path) -> None:
    assert (
        distilled(home, tmp_path / "run", "--set", "stage.0.data=jitter:1", "--no-baseline", "--set", "epochs=1") == 0
    )
    assert measurements(tmp_path / "run")["teacher_seconds"] > 0


def test_unlabelled_images_are_taught_too(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "more.npz", images=digits(100, 900)[0])
    np.savez(tmp_path / "large.npz", images=np.zeros((20, 9, 9), np.uint8))
    more = ["--no-baseline", "--epochs", "1"]
    assert distilled(home, tmp_path / "run", *more, "--unlabelled", str(tmp_path / "more.npz")) == 0
    names, *steps = (line.split(",") for line in (tmp_path / "run/stages/0/steps.csv").read_text().splitlines())
    assert sum(int(step[names.index("examples")]) for step in steps) == 540 + 100  # a tenth of 600 is held out
    assert distilled(home, tmp_path / "other", *more, "--unlabelled", str(tmp_path / "large.npz")) == 2
    assert "give images of one size" in capsys.readouterr().err


@pytest.mark.parametrize("method", plugins.names("methods"))
def test_methods_of_layers_are_refused_and_those_of_logits_work(
    method: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = distilled(home, tmp_path / "run", "--method", method, "--no-baseline", "--set", "epochs=0.1")
    asks = plugins.make("methods", method, {}).wants(2, 2)[1]
    of_layers = bool(asks.cls or asks.per_token)
    other_rows = "class" not in plugins.find("methods", method).outcomes
    assert code == (2 if of_layers or other_rows else 0)
    if code:
        assert re.search("compares layers|cannot train this task", capsys.readouterr().err)


def for_texts(builder: str) -> bool:
    known = plugins.find("students", builder)
    return not known.images and "ImageClassification" not in known.task_heads


@pytest.mark.parametrize("builder", list(filter(for_texts, plugins.names("students"))))
def test_builders_for_texts_are_refused(
    builder: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--train", home / "train.npz", "--out", tmp_path / "run", *FAST]
    assert potstill("distill", "--teacher", home / "teacher/student", "--student", builder, *data) == 2
    assert "student = 'mlp'" in capsys.readouterr().err


def test_what_does_not_fit_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "large.npz", images=np.zeros((20, 9, 9), np.uint8), labels=np.arange(20) % 10)
    write_csv(tmp_path / "texts.csv", [("a", 0), ("b", 1), ("c", 1)])
    teacher = ["distill", "--teacher", home / "teacher/student", "--student", "mlp"]
    cases = {
        "the images have 9 x 9 pixels, the model reads 8 x 8": [*teacher, "--train", tmp_path / "large.npz"],
        "give images of one size": [*teacher, "--train", home / "train.npz", "--test", tmp_path / "large.npz"],
        "the model needs images": [*teacher, "--train", tmp_path / "texts.csv"],
        "mlp: reads images": ["finetune", "--student", "mlp", "--train", tmp_path / "texts.csv"],
        "--student mlp": ["finetune", "--train", home / "train.npz"],
        "moves images": [
            "finetune",
            small_folder(tmp_path),
            "--train",
            tmp_path / "texts.csv",
            "--set",
            "stage.0.data=jitter",
        ],
        "either MODEL or --student": ["finetune", "DIR", "--student", "mlp", "--train", home / "train.npz"],
    }
    for words, call in cases.items():
        assert potstill(*call, "--out", tmp_path / "run", *FAST) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(InputError, match="81 pixels"):
        list(predict(home / "teacher/student", [np.zeros((9, 9))]))
    with pytest.raises(InputError, match="0 to 255"):
        list(predict(home / "teacher/student", [np.full((8, 8), 0.5)]))


def small_folder(folder: Path) -> Path:
    save_student(small_model("bert", layers=1), folder / "bert")
    return folder / "bert"


# data makers and the network


def test_jitter_moves_by_at_most_its_pixels_and_every_move_is_as_likely() -> None:
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, 50_000)
    numbers = draw_uniform(keys, (0, 0, 3, 0), 2)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert np.array_equal(numbers[7:9], draw_uniform(keys[7:9], (0, 0, 3, 0), 2))  # whatever stands beside them
    moves = np.floor(numbers * 5).astype(int) - 2
    counts = np.bincount((moves[:, 0] + 2) * 5 + moves[:, 1] + 2, minlength=25)
    assert len(counts) == 25 and ((counts - 2000) ** 2 / 2000).sum() < 45.6  # chi square, 24 degrees, p = 0.005
    assert not np.array_equal(numbers, draw_uniform(keys, (0, 0, 4, 0), 2))
    images = torch.from_numpy(digits(30)[0]).float()[:, None]
    shifts = torch.from_numpy(moves[:30])
    for image, shift, found in zip(images[:, 0], shifts.tolist(), moved(images, shifts)[:, 0], strict=True):
        expected = np.zeros((8, 8))
        for row in range(8):
            for column in range(8):
                if 0 <= row - shift[0] < 8 and 0 <= column - shift[1] < 8:
                    expected[row, column] = image[row - shift[0], column - shift[1]]
        assert np.array_equal(found.numpy(), expected)


def test_without_leaves_out_one_class_alone(tmp_path: Path) -> None:
    table = open_table(write_digits(tmp_path / "train.npz", 200))
    task, _ = make_task(None, None, labels_of(table), None, "train", table.form, shape=table.shape)
    examples = store(table, task)
    left = Without(["3", "7"]).make(examples, MakeContext(0, task))
    labels = digits(200)[1]
    assert np.array_equal(left.index, np.flatnonzero((labels != 3) & (labels != 7)))
    with pytest.raises(InputError, match="unknown label 'ten'"):
        Without(["ten"]).make(examples, MakeContext(0, task))
    with pytest.raises(InputError, match="moves images"):
        Jitter().make(examples, MakeContext(0))


def test_the_network_is_what_torch_would_make_of_the_same_layers(tmp_path: Path) -> None:
    student = small_images((24, 16))
    save_student(student, tmp_path / "mlp")
    weights = load_student(tmp_path / "mlp").model.state_dict()
    linear = [torch.nn.Linear(64, 24), torch.nn.Linear(24, 16), torch.nn.Linear(16, 2)]
    for layer, name in zip(linear, ("mlp.layers.0", "mlp.layers.1", "classifier"), strict=True):
        layer.load_state_dict({part: weights[f"{name}.{part}"] for part in ("weight", "bias")})
    plain = torch.nn.Sequential(linear[0], torch.nn.ReLU(), linear[1], torch.nn.ReLU(), linear[2])
    seen = torch.from_numpy(digits(20)[0]).float() / 255
    torch.testing.assert_close(student.model(seen[:, None]).logits, plain(seen.flatten(1)))
    dropped = plugins.make("students", "mlp", {"hidden": [4000], "dropout": 0.5, "input_dropout": 0.2})
    model = dropped.begin(ImageClassification(("a", "b"), shape=(1, 8, 8)), 0).model.train()
    hidden = model.mlp(torch.ones(1, 1, 8, 8)).last_hidden_state
    model.mlp.dropout.eval()
    assert float((model.mlp.input_dropout(torch.ones(10_000)) == 0).float().mean()) == pytest.approx(0.2, abs=0.02)
    assert 0.7 < float((hidden == 0).float().mean()) < 0.8  # half by dropout, of the rest half by the rectifier


def test_a_convolutional_network_is_what_torch_would_make_of_the_same_layers() -> None:
    """An odd size is pooled to its half, rounded up; a flat image is the same image."""
    shape = {"channels": [3, 5], "hidden": [7]}
    model = plugins.make("students", "cnn", shape).begin(ImageClassification(("a", "b"), shape=(2, 7, 6)), 0).model
    weights = [(each.weight, each.bias) for each in (*model.cnn.layers, model.classifier)]
    assert [tuple(weight.shape) for weight, _ in weights] == [
        *((3, 2, 3, 3), (3, 3, 3, 3), (5, 3, 3, 3), (5, 5, 3, 3)),
        *((7, 5 * 2 * 2), (2, 7)),
    ]
    seen = states = torch.rand(4, 2, 7, 6)
    for place, (weight, bias) in enumerate(weights[:4]):
        states = torch.nn.functional.conv2d(states, weight, bias, padding=1).relu()
        if place % 2:
            states = torch.nn.functional.max_pool2d(states, 2, ceil_mode=True)
    states = torch.nn.functional.linear(states.flatten(1), *weights[4]).relu()
    expected = torch.nn.functional.linear(states, *weights[5])
    torch.testing.assert_close(model(seen).logits, expected)
    torch.testing.assert_close(model(seen.flatten(1)).logits, expected)


def test_a_convolutional_network_learns_digits_and_its_kernels_are_pruned(home: Path, tmp_path: Path) -> None:
    data = ["--train", home / "train.npz", "--test", home / "test.npz", "--out", tmp_path / "run"]
    shape = ["--set", "student.channels=[8]", "--set", "student.hidden=[32]", "--epochs", "8", "--batch", "20"]
    rounds = ["--set", "stage.repeat=2", "--set", 'stage.reshape=[{build="ticket", removes=0.5}]', "--rate", "0.003"]
    hard = ["--method", "hard_labels", "--no-baseline"]
    assert potstill("distill", "--student", "cnn", *shape, *rounds, *hard, *data, *FAST) == 0
    score = measurements(tmp_path / "run")["models"]["fine-tuned"]["quality"]["task"]["test"]["accuracy"]
    assert score > 0.85
    model = load_student(tmp_path / "run/student").model
    kernels = {name: weight for name, weight in prunable(model).items() if weight.ndim == 4}
    assert len(kernels) == 2 and len(prunable(model)) == 3
    assert share_of_zeros(prunable(model)) == pytest.approx(0.5, abs=1e-3)
    assert all(bool((weight == 0).any()) for weight in kernels.values())


@pytest.mark.parametrize("change", [{"channels": [0]}, {"channels": []}, {"hidden_sizes": []}, {"channels": [1] * 40}])
def test_a_convolutional_config_that_is_no_network_is_refused(change: dict[str, list[int]], tmp_path: Path) -> None:
    student = plugins.make("students", "cnn", {}).begin(ImageClassification(("a", "b"), shape=(1, 8, 8)), 0)
    save_student(student, tmp_path / "cnn")
    config = json.loads((tmp_path / "cnn/config.json").read_text())
    (tmp_path / "cnn/config.json").write_text(json.dumps(config | change))
    with pytest.raises(InputError):
        load_student(tmp_path / "cnn")


def test_a_config_that_asks_for_too_much_is_refused(tmp_path: Path) -> None:
    save_student(small_images(), tmp_path / "mlp")
    config = json.loads((tmp_path / "mlp/config.json").read_text())
    for change in ({"hidden_sizes": [10**9]}, {"hidden_sizes": [1] * 10**5}, {"image_size": [10**6, 10**6]}):
        (tmp_path / "mlp/config.json").write_text(json.dumps(config | change))
        with pytest.raises(InputError):
            load_student(tmp_path / "mlp")
