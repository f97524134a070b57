"""Error analysis of systems that write text: where they lose, and by which faults."""
