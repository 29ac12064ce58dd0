"""DistilBERT's reference numbers: its three terms, their gradients, and which of BERT's tensors become which (arXiv:1910.01108).

The authors' soft targets are averaged over all attended tokens, or over the masked ones alone. Here a prediction is a row
of logits, so that both are one loss: the first with a prediction at every token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from potstill.models.builder import BuildContext
from potstill.models.student import Student
from potstill.plugins.methods.distilbert import DistilBert as Method
from potstill.plugins.students.distilbert import DistilBert
from potstill.signals import Batch, Signals, Term, View
from tests.support.references import Case, Checks, batch_of, close, tensor, value
from tests.support.small_models import small_tokenizer


def terms_of(
    case: Case, student: Tensor, hidden: Tensor, chosen: Tensor, labels: Tensor
) -> tuple[dict[str, Term], Batch]:
    """The method on a batch with a prediction at each of the chosen tokens."""
    inputs, settings = case["inputs"], case["settings"]
    real = tensor(inputs["attention_mask"]).bool()
    count = int(chosen.sum())
    known = labels[chosen].clamp(min=0).tolist()
    view = View({}, real, chosen.nonzero())
    counts: Any = {"examples": len(real), "predictions": count, "tokens": int(real.sum())}
    rows = torch.ones(len(real), dtype=torch.bool)
    batch = replace(batch_of(known, count), student=view, teacher=view, counts=counts, taught=rows)
    theirs, heard = tensor(inputs["teacher_logits"]), tensor(inputs["teacher_last_hidden"])
    weights = {name: settings[name] for name in ("alpha_ce", "alpha_cos")}
    method = Method(settings["T"], alpha_mlm=settings["alpha_mlm"] or settings["alpha_clm"], **weights)
    ours = Signals(logits=student[chosen], hidden=hidden[:, None])
    return method.losses(ours, Signals(logits=theirs[chosen], hidden=heard[:, None]), batch), batch


def check_terms(case: Case) -> None:
    inputs, settings, expected = case["inputs"], case["settings"], case["expected"]
    if "teacher_layers" in settings:
        return check_layers(case)
    student, hidden = (tensor(inputs[f"student_{name}"]).requires_grad_() for name in ("logits", "last_hidden"))
    labels, real = tensor(inputs["lm_labels"]).long(), tensor(inputs["attention_mask"]).bool()
    if not settings["mlm"]:  # a token is predicted at the one before
        labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)
    masked = labels != settings["ignore_index"]
    soft, batch = terms_of(case, student, hidden, masked if settings["restrict_ce_to_mask"] else real, labels)
    hard, of_masked = terms_of(case, student, hidden, masked, labels)
    found = [value(soft, "ce", batch), value(hard, "mlm", of_masked), value(soft, "cos", batch)]
    weights = [settings["alpha_ce"], settings["alpha_mlm"] or settings["alpha_clm"], settings["alpha_cos"]]
    names = ["loss_ce", "loss_mlm" if settings["mlm"] else "loss_clm", "loss_cos"]
    for each, weight, name in zip(found, weights, names, strict=True):
        close(each, weight * expected[name])
    if not settings["alpha_mse"]:  # which the paper does not have
        whole = torch.stack(found).sum()
        close(whole, expected["loss"])
        gradients = torch.autograd.grad(whole, (student, hidden))
        for gradient, name in zip(gradients, ("student_logits", "student_last_hidden"), strict=True):
            close(gradient, case["gradient_of_loss_wrt"][name])
    return None


def check_layers(case: Case) -> None:
    """The positions alone are not copied: the vector of the first token type is added to them."""
    settings, expected = case["settings"], case["expected"]
    tokenizer = small_tokenizer("bert")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=settings["teacher_layers"],
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
    )
    start = Student(BertForMaskedLM(config).eval(), tokenizer)
    builder = DistilBert("script")
    assert [layer - 1 for layer in builder.kept(settings["teacher_layers"])] == expected["teacher_layers_zero_based"]
    made = builder.build(start, BuildContext(start, 0, lambda: iter(()))).model
    ours, theirs = made.state_dict(), start.model.state_dict()
    assert made.config.num_hidden_layers == settings["student_layers"]
    for name, source in expected["student_tensor_from_teacher_tensor"].items():
        first_type = theirs["bert.embeddings.token_type_embeddings.weight"][0] if "position" in name else 0.0
        assert torch.equal(ours[name], theirs[source] + first_type), name


DISTILBERT: Checks = {"distilbert": {None: check_terms}}
