"""The sets: one module a source, each registers its own."""
