"""Read and write run directories: their files, checkpoints, bundles and lock."""
