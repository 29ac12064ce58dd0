"""Ways to make examples. One file is one data maker; its name is the word that recipes use: `{ make = "sample", rows = 640 }`.

A data maker is a frozen dataclass with `make(examples, seed)`, which returns examples.
"""
