"""Ranks that speak eplb.v1.Balancer/Session byte by byte: they say what a test wants, also what no client would say.

HTTP/2 and protobuf are written by hand, as far as one stream needs them: Python's gRPC is no dependency of the tests.
"""

import hashlib
import itertools
import random
import socket
import struct
import threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
STREAM = 1
WINDOW = (1 << 31) - 1  # bytes that the daemon may send without being told that they were read
NONCES = itertools.count(random.randrange(1 << 40))
CANCELLED = 1  # Failed.Code
WINDOW_STEPS = 10


def varint(number):
    text = bytearray()
    while number > 0x7F:
        text.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(text) + bytes([number])


def field(number, value):
    """One field of a message: an integer, bytes or a string. 0 and empty are left out, as proto3 does."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    text = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(text)) + text if text else b""


def fields(text):
    """Number and value of each field of a message; fixed64 and fixed32 as bytes."""
    found, at = {}, 0

    def take():
        nonlocal at
        number = shift = 0
        while True:
            byte = text[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(text):
        key = take()
        if key & 7 == 0:
            found[key >> 3] = take()
            continue
        size = take() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
        found[key >> 3] = text[at:at + size]
        at += size
    return found


def static_layout(world, spare=0):
    """Shape and digest of one layer with two experts and `spare` more slots, at most two, for each of `world` GPUs."""
    experts, slots = 2 * world, (2 + spare) * world
    replicas = [[slot for slot in range(slots) if slot % experts == expert] for expert in range(experts)]
    most = len(replicas[0])
    numbers = [1, experts, slots, world, 1, 1, most, *(slot % experts for slot in range(slots)), *map(len, replicas),
               *(slot for own in replicas for slot in own + [-1] * (most - len(own)))]
    shape = b"".join(field(i, n) for i, n in enumerate((1, experts, slots, world, 1, 1), start=1))
    return shape, digest_of(numbers)


def digest_of(numbers):
    return hashlib.sha256(b"eplb.placement.v1" + struct.pack(f"<{len(numbers)}i", *numbers)).digest()


class RawRank:
    """One stream. `hello` overrides fields of Hello by number. Answers are read on a thread of its own."""

    def __init__(self, port, job, run_id, rank, world, hello, on_proposal):
        self.rank, self.world, self.on_proposal = rank, world, on_proposal
        self.welcomed, self.ended = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.reader = None
        self.room, self.more_room = {0: 65535, STREAM: 65535}, threading.Condition()  # bytes that the daemon will read
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.settimeout(None)
        self.run_number, self.memory = 0, b""  # of the newest Keep
        self.cancelled = []  # versions that the daemon asked to forget, while `deaf`
        self.deaf = False    # answers no Cancel
        self._send_raw(PREFACE + self._frame(SETTINGS, 0, 0, struct.pack("!HI", 4, WINDOW)) +
                       self._frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", WINDOW - 65535)) +
                       self._frame(HEADERS, END_HEADERS, STREAM, self._headers(f"127.0.0.1:{port}")))
        shape, digest = static_layout(world)
        said = {1: job, 2: run_id, 4: rank, 5: world, 6: rank, 8: shape, 10: digest, 15: 2,
                16: WINDOW_STEPS, 17: 8, 18: 16, 19: 2, 20: "raw", 23: 1, 24: 1, **hello}
        self.nonce = said.pop(3, None) or next(NONCES)
        self._say(1, b"".join(field(i, value) for i, value in said.items()) + varint(3 << 3 | 1) + struct.pack("<Q", self.nonce))
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def report(self, first, last, counts, version=0):
        self._say(2, field(1, first) + field(2, last) + field(3, 1) + field(4, 2 * self.world) +
                  field(5, struct.pack(f"<{len(counts)}I", *counts)) + field(8, version))

    def ready(self, version, digest, plan_hash):
        self._say(3, field(1, version) + field(2, digest) + field(3, plan_hash))

    def applied(self, version, digest, step):
        self._say(5, field(1, version) + field(2, digest) + field(3, step))

    def failed(self, version, code):
        self._say(6, field(1, version) + field(2, code))

    def goodbye(self):
        """The rank finished; the daemon ends the stream."""
        self._say(8, field(1, "finished"))

    def drop(self):
        """Closes the connection as the death of the process does."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the daemon was first
        self.reader.join(10)
        self.socket.close()

    def _headers(self, authority):
        pairs = ((":method", "POST"), (":scheme", "http"), (":path", "/eplb.v1.Balancer/Session"), (":authority", authority),
                 ("content-type", "application/grpc"), ("te", "trailers"))
        return b"".join(b"\0" + varint(len(name)) + name.encode() + varint(len(value)) + value.encode() for name, value in pairs)

    def _frame(self, kind, flags, stream, body):
        return struct.pack("!I", len(body))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + body

    def _send_raw(self, text):
        with self.lock:
            try:
                self.socket.sendall(text)
            except OSError:
                self.ended.set()

    def _say(self, kind, message):
        up = field(kind, message) or varint(kind << 3 | 2) + b"\0"
        body = struct.pack("!BI", 0, len(up)) + up
        with self.more_room:
            # The thread that reads, and answers, makes room: it must not wait for it.
            if threading.current_thread() is not self.reader:
                self.more_room.wait_for(lambda: self.ended.is_set() or min(self.room.values()) >= len(body), 60)
            self.room = {stream: room - len(body) for stream, room in self.room.items()}
        self._send_raw(self._frame(DATA, 0, STREAM, body))

    def _add_room(self, stream, size):
        with self.more_room:
            self.room[stream] += size
            self.more_room.notify_all()

    def _take(self, size):
        text = b""
        while len(text) < size:
            more = self.socket.recv(size - len(text))
            if not more:
                raise ConnectionError("the daemon closed the connection")
            text += more
        return text

    def _read(self):
        pending = b""
        try:
            while not self.ended.is_set():
                head = self._take(9)
                kind, flags = head[3], head[4]
                body = self._take(int.from_bytes(head[:3], "big"))
                if kind == WINDOW_UPDATE:
                    self._add_room(int.from_bytes(head[5:], "big"), int.from_bytes(body, "big"))
                elif kind in (SETTINGS, PING) and not flags & ACK:
                    self._send_raw(self._frame(kind, ACK, 0, body if kind == PING else b""))
                elif kind == DATA:
                    pending = self._hear(pending + body)
                if kind in (RST_STREAM, GOAWAY) or (kind in (DATA, HEADERS) and flags & END_STREAM):
                    break
        except OSError:
            pass  # told by `ended`
        self.ended.set()
        self._add_room(STREAM, 0)

    def _hear(self, text):
        """The whole messages of `text`; returns what is left."""
        while len(text) >= 5 and len(text) >= 5 + (size := int.from_bytes(text[1:5], "big")):
            for kind, message in fields(text[5:5 + size]).items():
                self._answer(kind, fields(message))
            text = text[5 + size:]
        return text

    def _answer(self, kind, message):
        if kind == 1:
            self.welcomed.set()
        elif kind == 2 and self.on_proposal is not None:
            self.on_proposal(self, message[2], message[5])
        elif kind == 3 and self.deaf:
            self.cancelled.append(message[1])
        elif kind == 3:  # no rank votes for it here
            self.failed(message[1], CANCELLED)
        elif kind == 7:
            self.run_number, self.memory = message.get(1, 0), message.get(2, b"")


def ready_alike(rank, version, digest):
    """For on_proposal: PREPARED, with the plan of all ranks. No rank ever votes."""
    rank.ready(version, digest, hashlib.sha256(b"plan").digest())


def ready_with_a_plan_of_its_own(rank, version, digest):
    """For on_proposal: PREPARED, with a plan that no other rank has."""
    rank.ready(version, digest, hashlib.sha256(b"%d" % rank.rank).digest())


class RawJob:
    """The ranks of one run. Between train() and hang() all its connected ranks train, one window each `period` seconds."""

    def __init__(self, port, name, run_id="run-1", world=2, uneven=False, on_proposal=None, on_switch=None, period=0.1):
        """uneven: the load of all experts of rank 0 is high, so that a decision moves experts. on_switch: the ranks vote for
        every proposal and switch before their next window; called with the job then."""
        self.port, self.name, self.run_id, self.world, self.period = port, name, run_id, world, period
        self.on_proposal = self._prepare if on_switch is not None else on_proposal
        self.on_switch = on_switch
        self.prepared = {}  # rank -> version and digest, with on_switch
        self.version = 0    # version that all ranks run
        self.counts = [100 if uneven and expert < 2 else 10 for expert in range(2 * world)]
        self.ranks = {}
        self.silent = set()  # ranks that report nothing
        self.ahead = set()   # ranks that report steps far ahead alone
        self.step = 0
        self.trains = threading.Event()
        self.over = threading.Event()
        self.thread = None

    def connect(self, ranks=None, hello=None, keep=False):
        """New processes, or with `keep` the same ones again, which repeat what the daemon asked them to keep."""
        for rank in range(self.world) if ranks is None else ranks:
            said = {14: max(0, self.step - 1), **(hello or {})}
            before = self.ranks.get(rank)
            if keep and before is not None:
                said = {3: before.nonce, 24: 2, 28: before.run_number, 30: before.memory, **said}
            self.ranks[rank] = RawRank(self.port, self.name, self.run_id, rank, self.world, said, self.on_proposal)
        return self

    def train(self):
        """Goes on to train, at the step where it stands."""
        self.trains.set()
        if self.thread is None:
            self.thread = threading.Thread(target=self._train, daemon=True)
            self.thread.start()
        return self

    def hang(self):
        self.trains.clear()

    def finish(self):
        """All ranks end well."""
        self.hang()
        for rank in self.ranks.values():
            rank.goodbye()

    def drop(self, ranks=None):
        """These processes die: all of them by default."""
        for rank in list(self.ranks) if ranks is None else ranks:
            self.ranks[rank].drop()

    def close(self):
        self.over.set()
        self.trains.set()
        if self.thread is not None:
            self.thread.join(10)
        self.drop()

    def _prepare(self, rank, version, digest):
        self.prepared[rank.rank] = version, digest
        ready_alike(rank, version, digest)

    def _vote(self):
        """All ranks switch when they are PREPARED for one version."""
        held = list(self.prepared.values())
        if len(held) < self.world or len(set(held)) != 1:
            return
        self.version, digest = held[0]
        self.prepared.clear()
        for rank in self.ranks.values():
            rank.applied(self.version, digest, self.step - 1)
        self.on_switch(self)

    def _train(self):
        while not self.over.wait(self.period):
            self.trains.wait()
            self._vote()
            last = self.step + WINDOW_STEPS - 1
            for index, rank in list(self.ranks.items()):
                far = (1 << 30) if index in self.ahead else 0
                if index not in self.silent and not rank.ended.is_set():
                    rank.report(self.step + far, last + far, self.counts, self.version)
            self.step += WINDOW_STEPS
