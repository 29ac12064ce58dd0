"""The one training loop, losses, optimizers, checkpoints, logs."""
