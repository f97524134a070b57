"""A service that answers over HTTP: `python -m transformer_jax.serve`.

__main__    the command and its flags
running     open the runs, warm up, listen, end in order
app         the application: routes, and errors as answers
openai      the routes that clients of OpenAI's interface know
page        the page at /
shapes      what requests and answers look like, checked and documented
guards      limits: bodies, time, rate, tokens of access
service     threads, time, clients that leave, streams
models      runs that answer requests of many clients at once
"""
