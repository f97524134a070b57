"""The fixtures of tests that look at runs, and at the viewer's page in a browser."""

from viewing import browser, pages, untrained, view  # noqa: F401  (fixtures)
