"""Networks of potstill's own, known to transformers' Auto classes as soon as both are imported, in whatever order.

`import potstill` must stay quick, so that neither transformers nor torch is imported for it: what transformers has loaded
already is told at once, and what it loads later is told when it is there. Without potstill, a folder of such a network
is one of an unknown model_type, which transformers refuses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

PREFIX = "potstill-"  # of every model_type that needs potstill


def add_configs(module: Any) -> None:
    from potstill.models.architectures.mlp_config import MlpConfig
    from potstill.models.architectures.recurrent_configs import BagConfig, BilstmConfig, LstmTranslatorConfig

    for config in (BilstmConfig, BagConfig, MlpConfig, LstmTranslatorConfig):
        module.AutoConfig.register(config.model_type, config, exist_ok=True)


def add_models(module: Any) -> None:
    from potstill.models.architectures.lstm_translator import LstmTranslatorForSeq2SeqLM
    from potstill.models.architectures.mlp import MlpForImageClassification, MlpModel
    from potstill.models.architectures.mlp_config import MlpConfig
    from potstill.models.architectures.recurrent_configs import LstmTranslatorConfig
    from potstill.models.architectures.word_vectors import BagForSequenceClassification, BilstmForSequenceClassification

    module.AutoModel.register(MlpConfig, MlpModel, exist_ok=True)
    module.AutoModelForImageClassification.register(MlpConfig, MlpForImageClassification, exist_ok=True)
    module.AutoModelForSeq2SeqLM.register(LstmTranslatorConfig, LstmTranslatorForSeq2SeqLM, exist_ok=True)
    for model in (BilstmForSequenceClassification, BagForSequenceClassification):
        module.AutoModelForSequenceClassification.register(model.config_class, model, exist_ok=True)
        # pipelines look for a model's name here before they say that it is not supported
        module.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[model.config_class.model_type] = model.__name__


AFTER: dict[str, Callable[[Any], None]] = {
    "transformers.models.auto.configuration_auto": add_configs,
    "transformers.models.auto.modeling_auto": add_models,
}


class _Watching(MetaPathFinder):
    """Finds the two modules as Python would, and has our networks added once they have run."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in AFTER else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_add(module: ModuleType) -> None:
            run(module)
            AFTER[name](module)

        spec.loader.exec_module = run_and_add  # type: ignore[method-assign]
        return spec


def watch() -> None:
    if not any(isinstance(finder, _Watching) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watching())
        for name, add in AFTER.items():
            if name in sys.modules:
                add(sys.modules[name])
