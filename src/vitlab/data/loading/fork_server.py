"""What the fork server imports before it starts data-loading workers, so that they begin at once.

Ctrl-C and SIGTERM are for the process that trains, which may want to finish a step and write a checkpoint although its
whole group was sent them. The server, which is started with both put off, ignores both, and what it starts ignores
Ctrl-C from its first moment on; SIGTERM is given back to it, since multiprocessing ends processes with that.
"""

import os
import signal

import vitlab.data.loading.reading  # noqa: F401

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
