"""What a run is: the recipe's schema, its flags, `--set`, grids, and the discovery of plug-ins. No torch."""
