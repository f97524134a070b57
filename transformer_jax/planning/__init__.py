"""Forecast what a training needs, without training.

workload     the batch shapes of a config, and how often each is used
collectives  the communication of a compiled program, and the least possible
forecast     a plan as numbers for JSON and as text for people
"""
