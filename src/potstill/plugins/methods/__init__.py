"""Objectives: the return statement is the paper's equation."""
