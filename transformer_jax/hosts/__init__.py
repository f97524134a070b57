"""The processes of a run: how they find each other, agree, and notice a lost one.

`clusters` reads from the environment which process this is; `peers` connects to the
others and watches them; `connection` joins them for JAX and ends them together;
`agreement` makes all processes act on the same answer; `ending` has the exit codes.
"""

from transformer_jax.hosts.agreement import broadcast_from_first as broadcast_from_first
from transformer_jax.hosts.agreement import decide_in_first as decide_in_first
from transformer_jax.hosts.agreement import gather as gather
from transformer_jax.hosts.agreement import gather_numbers as gather_numbers
from transformer_jax.hosts.agreement import refuse_differences as refuse_differences
from transformer_jax.hosts.agreement import stops_at as stops_at
from transformer_jax.hosts.connection import connect as connect
from transformer_jax.hosts.connection import end_at_once as end_at_once
from transformer_jax.hosts.connection import end_together as end_together
from transformer_jax.hosts.connection import name_of as name_of
from transformer_jax.hosts.connection import pass_on_sigterm as pass_on_sigterm
from transformer_jax.hosts.ending import HUNG as HUNG
from transformer_jax.hosts.ending import RESTART as RESTART
