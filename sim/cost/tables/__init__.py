"""Cost models from operator times that others measured: readers of their files, interpolation, composition."""
