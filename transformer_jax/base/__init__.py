"""The foundation of all rooms.

errors        problems that the user can fix
files         atomic writes, untrusted JSON, locks
ids           the ids of the special tokens
schema        options, declared as fields of a dataclass
entry_points  what packages add by name
programs      compiled programs, kept in a form that needs no tracing
extensions    modules of other packages that a config names
"""
