"""Messages between ranks and a daemon, recorded by a proxy between them: bytes of connections, and the messages in them."""

import dataclasses
import json
import pathlib
import socket
import struct
import threading
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PADDED = 0, 1, 8


@dataclasses.dataclass
class Connection:
    """pieces: [(seconds since the recording began, whether the rank sent it, bytes)]."""
    pieces: list

    def sent(self, by_rank):
        return b"".join(piece for _, who, piece in self.pieces if who == by_rank)


def save(connections, path):
    """Bytes that the ranks sent, which are all that a replay needs."""
    path.write_text(json.dumps([[(round(at, 3), who, piece.hex()) for at, who, piece in one.pieces if who] for one in connections]))


def load(path):
    return [Connection([(at, who, bytes.fromhex(piece)) for at, who, piece in one])
            for one in json.loads(pathlib.Path(path).read_text())]


def frames(stream):
    """Frames of HTTP/2 as (type, flags, stream id, payload)."""
    at = len(PREFACE) if stream.startswith(PREFACE) else 0
    while at + 9 <= len(stream):
        length = int.from_bytes(stream[at:at + 3], "big")
        kind, flags = stream[at + 3], stream[at + 4]
        yield kind, flags, int.from_bytes(stream[at + 5:at + 9], "big") & 0x7fffffff, stream[at + 9:at + 9 + length]
        at += 9 + length


def calls_of(connection, path):
    """Ids of the streams of this connection whose call is `path`. C-core writes a path as it is, when it first does."""
    return [stream for kind, _, stream, payload in frames(connection.sent(True)) if kind == HEADERS and path in payload]


def messages(connection, stream, by_rank):
    """The messages of a call in one direction with gRPC's five bytes in front of each, whole ones only."""
    body = b""
    for kind, flags, of, payload in frames(connection.sent(by_rank)):
        if kind == DATA and of == stream:
            body += payload[1:len(payload) - payload[0]] if flags & PADDED else payload
    end = 0
    while end + 5 <= len(body) and end + 5 + struct.unpack(">I", body[end + 1:end + 5])[0] <= len(body):
        end += 5 + struct.unpack(">I", body[end + 1:end + 5])[0]
    return body[:end]


class Proxy:
    """Listens on a free port and carries connections to `target`, HOST:PORT. Close it."""

    def __init__(self, target):
        self.connections = []
        self._target, self._began = target, time.monotonic()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            host, port = self._target.rsplit(":", 1)
            far = socket.create_connection((host, int(port)))
            connection = Connection([])
            self.connections.append(connection)
            for source, sink, by_rank in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._carry, args=(source, sink, by_rank, connection), daemon=True).start()

    def _carry(self, source, sink, by_rank, connection):
        try:
            while piece := source.recv(1 << 16):
                connection.pieces.append((time.monotonic() - self._began, by_rank, piece))
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def replay(connection, address, begin):
    """Sends what the rank sent, at the recorded times counted from `begin`; what the daemon says is read and returned."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as link:
        heard = []

        def listen():
            try:
                while piece := link.recv(1 << 16):
                    heard.append(piece)
            except OSError:
                pass

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        for at, by_rank, piece in connection.pieces:
            if not by_rank:
                continue
            time.sleep(max(0, begin + at - time.monotonic()))
            try:
                link.sendall(piece)
            except OSError:
                break
        listener.join(1)
    return b"".join(heard)
