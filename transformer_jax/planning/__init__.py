"""Forecast what a step will cost: hardware by name, FLOPs, memory, communication."""
