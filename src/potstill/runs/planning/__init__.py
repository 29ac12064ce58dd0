"""What a run would cost, before it starts."""
