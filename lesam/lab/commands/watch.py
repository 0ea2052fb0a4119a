"""``lesam watch``: the report of a folder while its runs train, in a browser."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def watch(
    folder: Annotated[Path, Parameter(help="Folder with run folders in it.")] = Path("runs"),
    *,
    port: Annotated[int, Parameter(help="Port to listen at; 0 takes any free one.")] = 8765,
    host: Annotated[str, Parameter(help="Address to listen at; 0.0.0.0 lets other machines look.")] = "127.0.0.1",
) -> None:
    """Serve the report of FOLDER and keep it up to date as metrics arrive; Ctrl-C ends it.

    Only this machine can look unless --host says otherwise. Nothing but the page is served, and nothing can be changed.
    """
    from lesam.lab.report.live.folder import WatchedFolder
    from lesam.lab.report.live.server import PageServer
    from lesam.lab.training.interrupt import SIGNALS

    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; `lesam train` makes run folders in runs")
    with PageServer(WatchedFolder(folder), host, port) as server:
        # Also where a script started it in the background, with Ctrl-C ignored, and where a service manager ends it.
        before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
        print(f"{server.url} shows {folder}; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
