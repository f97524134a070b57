"""Put code, style and data into one HTML file that needs no network.

Such a file forbids itself all access by a content security policy, which names what it
may run by hash. Texts are data and never become markup.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any


def hash_source(text: str) -> str:
    """Return the hash by which a policy allows a script or style."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def escape(document: Any) -> str:
    """Write JSON that cannot close its element or a comment."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    escaped = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
    return re.sub("[<>&]", lambda m: escaped[m[0]], text)


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Replace each {{name}} by its part, in one pass that does not search the parts."""
    return re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], template)
