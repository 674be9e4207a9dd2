"""The user's own environments, in separate processes.

A `process_adapter.ProcessEnvironment` starts processes, each a `child.Child`,
that run `worker` for some of the environments; `messages` is what the two sides
send each other.
"""
