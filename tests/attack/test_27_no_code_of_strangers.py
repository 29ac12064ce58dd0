"""27: nothing that a stranger put into a model's folder or a recipe is run by any command, and nobody is asked whether it may."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.attack.attacks import Ended, Server, some, summed
from tests.attack.small_home import QUICK, Home
from tests.training.test_checkpoints import Payload

YES = b"y\n" * 50
QUESTION = ("[y/N]", "Do you wish", "trust_remote_code")
Hostile = Callable[[Path, Path], None]  # the model's folder, and the mark that its code would leave


def changed(folder: Path, file: str, values: dict[str, Any]) -> None:
    path = folder / file
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(settings | values))


def theirs(folder: Path, mark: Path) -> None:
    """Code that leaves a mark when it is imported, called or unpickled."""
    code = f"import os\nos.makedirs({str(mark)!r}, exist_ok=True)\n"
    code += "class Theirs:\n    @classmethod\n    def from_pretrained(cls, *_, **__): return cls()\n"
    for name in ("theirs.py", "configuration_theirs.py", "modeling_theirs.py", "tokenization_theirs.py", "__init__.py"):
        (folder / name).write_text(code)


EVERY = (
    "AutoConfig",
    "AutoModel",
    "AutoModelForSequenceClassification",
    "AutoModelForSeq2SeqLM",
    "AutoModelForCausalLM",
)
AUTO = {name: "theirs.Theirs" for name in EVERY} | {"AutoTokenizer": ["theirs.Theirs", "theirs.Theirs"]}


def own_type(folder: Path, mark: Path) -> None:
    theirs(folder, mark)
    changed(folder, "config.json", {"auto_map": AUTO, "model_type": "theirs"})


def known_type(folder: Path, mark: Path) -> None:
    theirs(folder, mark)
    changed(folder, "config.json", {"auto_map": AUTO, "trust_remote_code": True})


def own_tokenizer(folder: Path, mark: Path) -> None:
    theirs(folder, mark)
    changed(folder, "tokenizer_config.json", {"auto_map": AUTO, "tokenizer_class": "Theirs"})


def known_tokenizer(folder: Path, mark: Path) -> None:
    theirs(folder, mark)
    changed(folder, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["theirs.Theirs", None]}})


def of_another_repository(folder: Path, mark: Path) -> None:
    theirs(folder, mark)
    changed(
        folder,
        "config.json",
        {"auto_map": {name: f"{folder}--theirs.Theirs" for name in EVERY}, "model_type": "theirs"},
    )


def pickled(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(mark)))


def pickled_under_another_name(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Payload(mark)))


def pickled_by_the_index(folder: Path, mark: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(mark)))
    listed = {"metadata": {}, "weight_map": dict.fromkeys(weights, "pytorch_model.bin")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))


def kernels(folder: Path, mark: Path) -> None:
    changed(folder, "config.json", {"attn_implementation": "somebody/kernels"})


def kernels_by_part(folder: Path, mark: Path) -> None:
    changed(folder, "config.json", {"attn_implementation": {"": "somebody/kernels"}})


def kernels_in_private(folder: Path, mark: Path) -> None:
    changed(folder, "config.json", {"_attn_implementation": {"": "somebody/kernels"}})


def kernels_of_experts(folder: Path, mark: Path) -> None:
    changed(folder, "config.json", {"_attn_implementation_internal": "somebody/kernels"})


REFUSED: list[Hostile] = [
    own_type, known_type, own_tokenizer, known_tokenizer, of_another_repository, pickled, pickled_under_another_name,
    pickled_by_the_index, kernels, kernels_by_part, kernels_in_private,
]  # fmt: skip
"""What must be refused, and not only left alone."""


def own_class(folder: Path, mark: Path) -> None:
    theirs(folder, mark)
    changed(folder, "config.json", {"architectures": ["theirs.Theirs"]})


def own_generation(folder: Path, mark: Path) -> None:
    (folder / "custom_generate").mkdir()
    theirs(folder / "custom_generate", mark)
    shutil.copy(folder / "custom_generate/theirs.py", folder / "custom_generate/generate.py")
    changed(folder, "generation_config.json", {"custom_generate": str(folder)})


def own_pipeline(folder: Path, mark: Path) -> None:
    theirs(folder, mark)
    changed(
        folder,
        "config.json",
        {"custom_pipelines": {"text-classification": {"impl": "theirs.Theirs", "pt": ["AutoModel"]}}},
    )


def own_quantizer(folder: Path, mark: Path) -> None:
    theirs(folder, mark)
    changed(folder, "config.json", {"quantization_config": {"quant_method": "theirs", "modules": "theirs.Theirs"}})


def own_adapter(folder: Path, mark: Path) -> None:
    theirs(folder, mark)
    mapped = {"parent_library": "strangers", "base_model_class": "run"}
    changed(
        folder,
        "adapter_config.json",
        {"peft_type": "LORA", "base_model_name_or_path": str(folder), "auto_mapping": mapped},
    )


def own_template(folder: Path, mark: Path) -> None:
    run = f"{{{{ cycler.__init__.__globals__.os.makedirs('{mark}') }}}}"
    (folder / "chat_template.jinja").write_text(run)
    changed(folder, "tokenizer_config.json", {"chat_template": run})


def pickles_beside(folder: Path, mark: Path) -> None:
    for name in (
        "pytorch_model.bin",
        "training_args.bin",
        "optimizer.pt",
        "vocab.pkl",
        "scheduler.pt",
        "rng_state.pth",
        "tokenizer.pkl",
    ):
        (folder / name).write_bytes(pickle.dumps(Payload(mark)))


def own_processor(folder: Path, mark: Path) -> None:
    theirs(folder, mark)
    for name in ("processor_config.json", "preprocessor_config.json", "feature_extractor_config.json"):
        changed(folder, name, {"auto_map": {"AutoProcessor": "theirs.Theirs", "AutoImageProcessor": "theirs.Theirs"}})


LEFT_ALONE: list[Hostile] = [
    kernels_of_experts, own_class, own_generation, own_pipeline, own_quantizer, own_adapter, own_template, pickles_beside, own_processor
]  # fmt: skip
"""What may be refused or passed over."""

Command = Callable[[Path, Home, Path], list[str | Path]]


def shaped(home: Home, out: Path) -> list[str | Path]:
    shape = ["--student", "keep_layers:1", "--method", "soft_targets", "--no-baseline", "--force", "--epochs", "1"]
    return [*home.rows("train", "dev"), *shape, *QUICK, "--out", out]


COMMANDS: dict[str, Command] = {
    "measure": lambda model, home, out: ["measure", model, "--data", home.folder / "test.csv"],
    "predict": lambda model, home, out: ["predict", model],
    "distill": lambda model, home, out: ["distill", "--teacher", model, *shaped(home, out)],
    "export": lambda model, home, out: ["export", model, "--to", "onnx", "--out", out],
    "predict a file": lambda model, home, out: ["predict", model, home.folder / "test.csv"],
    "measure beside": lambda model, home, out: ["measure", home.teacher, model, "--data", home.folder / "test.csv"],
    "measure its file": lambda model, home, out: ["measure", model / "model.safetensors", "--data", home.folder / "test.csv"],
    "predict its file": lambda model, home, out: ["predict", model / "config.json", home.folder / "test.csv"],
    "export int8": lambda model, home, out: ["export", model, "--to", "int8", "--out", out],
    "export huffman": lambda model, home, out: ["export", model, "--to", "huffman", "--out", out],
    "export ctranslate2": lambda model, home, out: ["export", model, "--to", "ctranslate2", "--out", out],
    "translate": lambda model, home, out: ["translate", model],
    "start": lambda model, home, out: ["distill", "--teacher", home.teacher, "--start", model, *shaped(home, out)],
    "a data set's teacher": lambda model, home, out: ["distill", "--set", f"data.0.teacher={model}", *shaped(home, out)],
    "finetune": lambda model, home, out: ["finetune", model, *home.rows("train", "dev"), *QUICK, "--out", out],
    "plan": lambda model, home, out: ["plan", "--teacher", model, *shaped(home, out)],
    "plan a start": lambda model, home, out: ["plan", "--teacher", home.teacher, "--start", model, *shaped(home, out)],
    "study": lambda model, home, out: [
        "study", "size-curve", "--teacher", model, *home.rows("train", "dev"), "--with", "layers=[1, 2]", "--out", out
    ],
    "resume": lambda model, home, out: ["distill", "--teacher", home.teacher, *shaped(home, out), "--resume", model],
    "report": lambda model, home, out: ["report", model, "--out", out.with_suffix(".html")],
}  # fmt: skip
NOT_REFUSED = ("measure", "predict", "distill", "plan", "finetune")  # what is passed over is done, which takes its time


def what_went_wrong(ended: Ended, mark: Path, codes: tuple[int, ...]) -> str | None:
    if mark.exists():
        return "the stranger's code ran"
    if asked := [one for one in QUESTION if one in ended.out + ended.err]:
        return f"somebody was asked: {asked}"
    return ended.fault(codes)


def test_27_no_command_runs_what_a_model_s_folder_brings(
    home: Home, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    pairs = [*product(REFUSED, COMMANDS), *product(LEFT_ALONE, NOT_REFUSED)]
    pairs.sort(key=lambda pair: list(COMMANDS).index(pair[1]))
    cases, wrong = some(pairs, 14, first=6), []
    for number, (hostile, command) in enumerate(cases):
        model = Path(shutil.copytree(home.teacher, tmp_path / f"{number}/model"))
        mark = tmp_path / f"{number}/it-ran"
        hostile(model, mark)
        words = COMMANDS[command](model, home, tmp_path / f"{number}/out")
        ended = server.run(*words, stdin=YES, cwd=model, env={"STRANGERS_MARK": str(mark)}, seconds=120)
        if fault := what_went_wrong(ended, mark, (2,) if hostile in REFUSED else (0, 2)):
            wrong.append(f"{command} of {hostile.__name__}: {fault}")
        shutil.rmtree(model.parent)
    assert not wrong, summed(wrong, len(cases))
    figure(27, f"{len(cases)} hostile model folders and commands: 0 run, 0 questions")


def test_27_the_hostile_folders_would_have_worked(home: Home, tmp_path: Path) -> None:
    """A careless reader runs them, or the tests above say nothing."""
    from transformers import AutoConfig

    model = Path(shutil.copytree(home.teacher, tmp_path / "model"))
    own_type(model, tmp_path / "it-ran")
    with pytest.raises(Exception):  # noqa: B017 (what it raises afterwards is no matter)
        AutoConfig.from_pretrained(model, trust_remote_code=True)
    assert (tmp_path / "it-ran").exists()
    pickled(model, tmp_path / "it-ran-too")
    pickle.loads((model / "pytorch_model.bin").read_bytes())
    assert (tmp_path / "it-ran-too").exists()


# fmt: off
FUNCTIONS = ("torch.utils.collect_env:run", "strangers:run", "os:system", "subprocess:getoutput", "posix:system", "builtins:exec", "pty:spawn",
             "runpy:run_path", "pickle:loads", "importlib:import_module", "torch.hub:load", "numpy:load", "torch:load", "_posixsubprocess:fork_exec",
             "potstill.training.teacher.black_boxes:command_decoder",
             "torch.utils.cpp_extension:load", "sklearn.utils._testing:assert_run_python_script_without_output",
             "strangers.run:run", "strangers:__name__", "../strangers:run", ":run", "strangers:", "torch.utils.collect_env:run_and_read_all",
             "matplotlib.testing.compare:make_test_filename", "pip._internal.cli.main:main", "setuptools.archive_util:unpack_archive")
COMMANDS_NAMED = ("touch {mark}", "sh -c 'touch {mark}'", "/usr/bin/env touch {mark}", "touch {mark} ; true", "$(touch {mark})", "`touch {mark}`")
# fmt: on


def recipes(home: Home, mark: Path) -> dict[str, str]:
    """What a stranger could write, by the field that takes it."""
    head = f'teacher = "{home.teacher}"\nstudent = "keep_layers:1"\nforce = true\nbaseline = false\ntiming = "none"\nlength = 16\n'
    data = (
        f'[data]\ntrain = "{mark.parent}/rows.csv"\ndev = "{home.folder}/dev.csv"\n[[stage]]\nepochs = 1\nbatch = 8\n'
    )
    found = {}
    for name in FUNCTIONS:
        found[f"tagger {name}"] = f'{head}{data}data = [{{ make = "augmented", copies = 1, tagger = "{name}" }}]\n'
        found[f"function {name}"] = f'{head}{data}data = [{{ make = "teacher_outputs", function = "{name}" }}]\n'
    for command in COMMANDS_NAMED:
        named = json.dumps(command.format(mark=mark))
        found[f"command {command}"] = f'{head}{data}data = [{{ make = "teacher_outputs", command = {named} }}]\n'
    for kind, line in (
        ("method", 'method = { name = "strangers" }'),
        ("method path", 'method = { name = "../strangers" }'),
        ("data maker", 'data = [{ make = "strangers" }]'),
        ("reshape", 'reshape = [{ build = "strangers" }]'),
    ):
        found[kind] = f"{head}{data}{line}\n"
    found["student"] = head.replace("keep_layers:1", "strangers") + data
    return found


def translation(home: Home) -> str:
    return "".join(f"{json.dumps({'source': 'a b', 'target': 'c d'})}\n" for _ in range(4))


VERBS: dict[str, Callable[[Path, Path], list[str | Path]]] = {
    "distill": lambda recipe, out: ["distill", recipe, "--out", out, "--quiet"],
    "plan": lambda recipe, out: ["plan", recipe],
    "finetune": lambda recipe, out: ["finetune", "--recipe", recipe, "--out", out, "--quiet"],
    "train": lambda recipe, out: ["train", "--recipe", recipe, "--shape", "bag", "--out", out, "--quiet"],
    "study": lambda recipe, out: ["study", "size-curve", recipe, "--with", "layers=[1, 2]", "--out", out],
    "show": lambda recipe, out: ["show", recipe],
}


def test_27_no_command_runs_what_a_recipe_names(
    home: Home, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """POTSTILL_COMMANDS is not set: neither a program nor a function is started, whoever wrote it."""
    mark = tmp_path / "it-ran"
    (tmp_path / "rows.csv").write_text(
        "text,label\n" + "".join(f"touch {mark} {n},positive\nbad {n},negative\n" for n in range(8))
    )
    (tmp_path / "strangers.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    written = recipes(home, mark)
    pairs = sorted(product(written, VERBS), key=lambda pair: (list(VERBS).index(pair[1]), list(written).index(pair[0])))
    cases, wrong = some(pairs, 10, first=4), []
    for number, (name, verb) in enumerate(cases):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "recipe.toml").write_text(written[name])
        words = VERBS[verb](place / "recipe.toml", place / "out")
        ended = server.run(
            *words, stdin=YES, cwd=tmp_path, env={"STRANGERS_MARK": str(mark), "POTSTILL_COMMANDS": ""}, seconds=120
        )
        refused = verb == "distill" or name.split()[0] not in ("tagger", "function", "command")
        if fault := what_went_wrong(ended, mark, (2,) if refused else (0, 2)):
            wrong.append(f"{verb} of a recipe with {name}: {fault}")
        shutil.rmtree(place)
        if mark.exists():
            mark.rmdir() if mark.is_dir() else mark.unlink()
    assert not wrong, summed(wrong, len(cases))
    figure(27, f"{len(cases)} recipes and commands with functions and programs of strangers: 0 run")


def test_27_a_function_that_the_user_allows_is_run(home: Home, server: Server, tmp_path: Path) -> None:
    """Else the recipes above could be refused for any other reason."""
    mark = tmp_path / "it-ran"
    shutil.copy(home.folder / "train.csv", tmp_path / "rows.csv")
    (tmp_path / "recipe.toml").write_text(recipes(home, mark)["tagger strangers:run"])
    env = {"STRANGERS_MARK": str(mark), "POTSTILL_COMMANDS": "allowed"}
    server.run("distill", tmp_path / "recipe.toml", "--out", tmp_path / "out", "--quiet", env=env)
    assert mark.exists()
