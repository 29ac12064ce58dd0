"""One run and several: prepare, build, train in stages, grid, baseline, measure, study."""
