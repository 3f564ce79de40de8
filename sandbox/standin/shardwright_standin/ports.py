"""Ports for servers that are told where to listen before they start."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def reserved() -> int:
    """A port of this machine that nobody else is given within the next minute.

    A port that was only free a moment ago may by now be another's: of a server started at the same
    time, or of a connection to somewhere. So one connection is made to it and closed by the side
    that listened, which leaves the port in TIME_WAIT. The kernel gives such a port to nobody who
    asks for any (port 0, or a connection's own end), and lets a server listen on it that sets
    SO_REUSEADDR, as servers do on Linux.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, 0))
        listener.listen(1)
        address = listener.getsockname()
        with socket.create_connection(address) as client:
            listener.accept()[0].close()
            # Its end has come: from now on the other side waits.
            client.recv(1)
    return int(address[1])
