"""Measured server processes."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

HERE = Path(__file__).parent


class Server:
    """A server process, and its CPU time."""

    def __init__(self, command: list[str], port: int) -> None:
        self.port = port
        environment = {**os.environ, "PYTHONPATH": f"src{os.pathsep}{HERE}"}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        time.sleep(1.0)

    def cpu_s(self) -> float:
        tree = [psutil.Process(self.process.pid)]
        tree += tree[0].children(recursive=True)
        return sum(sum(p.cpu_times()[:2]) for p in tree)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
