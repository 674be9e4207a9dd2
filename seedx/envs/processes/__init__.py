"""The user's own environments, in separate processes.

A `process_adapter.ProcessEnvironment` starts processes, each a `child.Child`.
Each runs `worker` for some of the environments. `messages` defines the messages
between the two sides.
"""
