"""What all rooms stand on: errors, files, options of configs, extensions."""
