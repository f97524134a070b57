"""A picture drawn in code, with slow and fast changes, edges and a letter.

It has a sky that darkens upwards, a sun, three ranges of hills, water with waves, a
zone plate whose rings narrow outwards, a checkerboard and a T.
"""

import numpy as np
from jaxtyping import Float

FINE = 4  # pixels are means of FINE × FINE points


def draw(size: int) -> Float[np.ndarray, "H W 3"]:
    """Draw the picture of size × size pixels, with colours 0..1."""
    axis = (np.arange(size * FINE) + 0.5) / (size * FINE)
    x, y = np.meshgrid(axis, axis)
    picture = _mix((0.98, 0.80, 0.55), (0.16, 0.33, 0.62), 1 - y / 0.7)
    sun = np.hypot(x - 0.76, y - 0.17)
    picture = _paint(picture, sun < 0.09, (1.0, 0.93, 0.62))
    for height, waves, color in (
        (0.52, 1.3, (0.45, 0.47, 0.63)),
        (0.60, 2.2, (0.29, 0.40, 0.45)),
        (0.67, 3.7, (0.13, 0.27, 0.24)),
    ):
        ridge = height + 0.06 * np.sin(2 * np.pi * waves * x + 9 * height)
        ridge += 0.012 * np.sin(2 * np.pi * 5 * waves * x)
        picture = _paint(picture, y > ridge, color)
    ripples = 0.5 + 0.5 * np.sin(2 * np.pi * (14 * y**2 + 1.5 * np.sin(9 * x)))
    water = _mix((0.10, 0.22, 0.38), (0.75, 0.80, 0.84), ripples)
    picture = np.where((y > 0.74)[..., None], water, picture)
    radius = np.hypot(x - 0.24, y - 0.25)
    rings = 0.5 + 0.5 * np.cos(2 * np.pi * 80 * radius**2)
    plate = _mix((0.08, 0.06, 0.12), (0.96, 0.94, 0.90), rings)
    picture = np.where((radius < 0.19)[..., None], plate, picture)
    squares = (np.floor(x * 32) + np.floor(y * 32)) % 2
    board = _mix((0.72, 0.16, 0.14), (0.97, 0.93, 0.85), squares)
    inside = (x > 0.625) & (x < 0.9375) & (y > 0.5) & (y < 0.6875)
    picture = np.where(inside[..., None], board, picture)
    letter = (abs(x - 0.5) < 0.11) & (abs(y - 0.335) < 0.022)
    letter |= (abs(x - 0.5) < 0.022) & (y > 0.335) & (y < 0.56)
    picture = _paint(picture, letter, (0.97, 0.97, 0.97))
    return picture.reshape(size, FINE, size, FINE, 3).mean(axis=(1, 3))


def _mix(low, high, share):
    share = np.clip(share, 0, 1)[..., None]
    return (1 - share) * np.array(low) + share * np.array(high)


def _paint(picture, where, color):
    return np.where(where[..., None], np.array(color), picture)
