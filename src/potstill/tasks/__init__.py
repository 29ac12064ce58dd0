"""What is predicted. One file is one task: how rows become sequences, where the head is read, how answers are scored.

The loop, the methods and the memory see predictions only (rows of logits, see `potstill.signals`) and no task's name.
"""

from __future__ import annotations

from potstill.tasks.classify import Task, TaskName
from potstill.tasks.label_matching import make_task, named

__all__ = ["Task", "TaskName", "make_task", "named"]
