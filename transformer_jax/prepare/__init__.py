"""Encode the training examples of a config once, for many processes and trainings."""
