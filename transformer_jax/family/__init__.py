"""Extend the core: one folder a system, with its task, model, data, figure and README.

A member imports the core and no other member, and registers by `entry_points.txt`.
"""
