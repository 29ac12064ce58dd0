"""All that a plug-in may import. The rooms behind it may be rebuilt; these names stay.

Bases, types and bounds are plain names. Modules are imported when one of their functions is first used, so that
listing plug-ins and checking recipes needs neither torch nor transformers: write `from potstill.api import torch`
instead of `import torch`, and `losses.soft(…)` instead of importing the function.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from pydantic import Field

from potstill.data.examples import Examples, key_of
from potstill.data.making import DataMaker, Draw, EpochDataMaker, MakeContext, Missing, TeacherDataMaker
from potstill.data.task import DataTask
from potstill.errors import InputError, TrainingError
from potstill.inference.export_types import Checked, Export, Rows
from potstill.models.builder import BuildContext, Builder, Student, Texts
from potstill.recipe.pace import FINE_TUNING, FROM_RANDOM_WEIGHTS, Pace
from potstill.recipe.schema import Above, Count, Drawn, Layers, NotBelow, Recipe, Share, Width
from potstill.recipe.schema import Rows as TableRows
from potstill.recipe.short_forms import parse_value
from potstill.runs.study import Answer, Section, Study, StudyRun
from potstill.signals import NEVER, Batch, Signals, Term, View, Wants
from potstill.training.layer_maps import LayerMap, WholeMap
from potstill.training.method import Method


class _LazyModule(types.ModuleType):
    """A stand-in for a module that is imported when an attribute is first used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by inspection, not by a plug-in
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        module = sys.modules.get(self.__name__) or importlib.import_module(self.__name__)  # methods ask in every step
        return getattr(module, name)


if TYPE_CHECKING:
    import torch
    import transformers

    from potstill.data import derived, nearest, pixel_reader
    from potstill.data.augment import tagging, word_changes
    from potstill.inference import form_speed, onnx_check
    from potstill.models import anatomy, heads, loading, text_vectors, word_candidates
    from potstill.models import student as networks
    from potstill.models.compression import (
        attention_heads,
        clusters,
        coded,
        factorised_tables,
        fisher,
        halves,
        held,
        influence,
        linear_maps,
        low_rank,
        masks,
        neurons,
        quantized,
        reading,
        tickets,
    )
    from potstill.models.generation import ctranslate2, decoding
    from potstill.models.onnx import four_bits as onnx_four_bits
    from potstill.models.onnx import quantizing as onnx_quantizing
    from potstill.models.onnx import writing as onnx_writing
    from potstill.models.tokenizers import joint_bpe, trimming, word_vectors, wordpiece
    from potstill.system import files as scratch
    from potstill.tasks import classify_images
    from potstill.tasks.metrics import texts as text_metrics
    from potstill.training import layer_maps, losses
    from potstill.training.teacher import black_boxes
    from potstill.training.teacher import texts as teacher_texts
else:
    for _name, _module in {
        "torch": "torch",
        "transformers": "transformers",
        "derived": "potstill.data.derived",
        "nearest": "potstill.data.nearest",
        "pixel_reader": "potstill.data.pixel_reader",
        "tagging": "potstill.data.augment.tagging",
        "word_changes": "potstill.data.augment.word_changes",
        "form_speed": "potstill.inference.form_speed",
        "onnx_check": "potstill.inference.onnx_check",
        "anatomy": "potstill.models.anatomy",
        "heads": "potstill.models.heads",
        "loading": "potstill.models.loading",
        "networks": "potstill.models.student",
        "text_vectors": "potstill.models.text_vectors",
        "word_candidates": "potstill.models.word_candidates",
        "attention_heads": "potstill.models.compression.attention_heads",
        "clusters": "potstill.models.compression.clusters",
        "coded": "potstill.models.compression.coded",
        "factorised_tables": "potstill.models.compression.factorised_tables",
        "fisher": "potstill.models.compression.fisher",
        "halves": "potstill.models.compression.halves",
        "held": "potstill.models.compression.held",
        "influence": "potstill.models.compression.influence",
        "linear_maps": "potstill.models.compression.linear_maps",
        "low_rank": "potstill.models.compression.low_rank",
        "masks": "potstill.models.compression.masks",
        "neurons": "potstill.models.compression.neurons",
        "quantized": "potstill.models.compression.quantized",
        "reading": "potstill.models.compression.reading",
        "tickets": "potstill.models.compression.tickets",
        "ctranslate2": "potstill.models.generation.ctranslate2",
        "decoding": "potstill.models.generation.decoding",
        "onnx_four_bits": "potstill.models.onnx.four_bits",
        "onnx_quantizing": "potstill.models.onnx.quantizing",
        "onnx_writing": "potstill.models.onnx.writing",
        "joint_bpe": "potstill.models.tokenizers.joint_bpe",
        "trimming": "potstill.models.tokenizers.trimming",
        "word_vectors": "potstill.models.tokenizers.word_vectors",
        "wordpiece": "potstill.models.tokenizers.wordpiece",
        "scratch": "potstill.system.files",
        "classify_images": "potstill.tasks.classify_images",
        "text_metrics": "potstill.tasks.metrics.texts",
        "layer_maps": "potstill.training.layer_maps",
        "losses": "potstill.training.losses",
        "black_boxes": "potstill.training.teacher.black_boxes",
        "teacher_texts": "potstill.training.teacher.texts",
    }.items():
        globals()[_name] = _LazyModule(_module)
