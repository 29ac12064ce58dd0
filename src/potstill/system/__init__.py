"""What any program needs: whole-or-absent files, paths, locks, interrupts, ranks, random numbers, display."""
