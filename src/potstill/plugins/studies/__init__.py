"""Questions that several runs answer."""
