#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets that are not text, and those that are many: tests/fuzz/corpus/<target>/seed-*.

Deterministic; run again after a change of a message or format. Findings are added beside them under other names."""
import hashlib
import io
import pathlib
import struct
import zipfile

CORPUS = pathlib.Path(__file__).parent / "corpus"
LAYERS, EXPERTS, SLOTS, GPUS = 4, 6, 6, 3


def save(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(content if isinstance(content, bytes) else content.encode())


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def field(number, value):
    """One protobuf field: an int as varint, bytes and str with their length, a float as a double."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(**fields):
    return b"".join(field(int(name[1:]), value) for name, value in fields.items())


def zigzag(numbers):
    return b"".join(varint(n << 1 ^ n >> 31) for n in numbers)


SHAPE = message(_1=LAYERS, _2=EXPERTS, _3=SLOTS, _4=GPUS, _5=1, _6=1)
ROW = list(range(EXPERTS))


def digest():
    """Digest of the static placement: any 32 bytes are well-formed, these are merely typical."""
    return hashlib.sha256(b"placement").digest()


def layer(number, slots):
    return message(_1=number, _2=zigzag(slots), _3=zigzag([0] * SLOTS))


def placement():
    return message(_1=SHAPE, _3=3, _4=digest()) + b"".join(field(2, layer(each, ROW)) for each in range(LAYERS))


def hello(rank):
    return (message(_1="train", _2="run-1") + varint(3 << 3 | 1) + struct.pack("<Q", 100 + rank) +
            message(_4=rank, _5=GPUS, _6=rank, _8=SHAPE, _10=digest(), _15=2, _16=10, _17=8, _18=16, _19=2, _20="1"))


def memory():
    gone = field(5, message(_1="run-0", _2=1)) + field(5, message(_1="run-00"))
    settings = message(_1="balanced", _2="observe", _3=50, _4=0.05, _5=1000)
    return (message(_1=7, _2=12, _3=2, _4="run-1") + gone +
            message(_6=1, _7="loss spike", _8=settings, _9="ranks planned differently", _10=40, _11=4, _12=3, _13=9) +
            message(_14=1e6, _15=0.25, _16=1.5, _17=2e6, _18=3.0, _19=2.5, _20=44))


def stream_messages():
    counts = struct.pack(f"<{LAYERS * EXPERTS}I", *range(LAYERS * EXPERTS))
    wide = struct.pack(f"<{LAYERS * EXPERTS}Q", *(n << 33 for n in range(LAYERS * EXPERTS)))
    up = {
        "hello": field(1, hello(0)),
        "hello-run": field(1, hello(0) + message(_28=2, _29=1, _30=memory())),
        "moved": field(9, message(_1=8, _2="10.0.0.2:29610")),
        "report": field(2, message(_1=0, _2=9, _3=LAYERS, _4=EXPERTS, _5=counts)),
        "report-u64": field(2, message(_1=0, _2=9, _3=LAYERS, _4=EXPERTS, _6=wide, _7=3)),
        "report-parts": field(2, message(_1=0, _2=9, _3=LAYERS, _4=EXPERTS, _6=wide, _8=7) +
                              field(9, message(_1=3, _2=4, _3=counts)) + field(9, message(_1=5, _2=6, _4=wide))),
        "report-parts-unknown": field(2, message(_1=0, _2=9, _3=LAYERS, _4=EXPERTS, _5=counts, _8=7, _10=1)),
        "ready": field(3, message(_1=5, _2=digest(), _3=digest())),
        "nack": field(4, message(_1=5, _2=3, _3="running 4")),
        "applied": field(5, message(_1=5, _2=digest(), _3=40, _4=4096, _5=0.25)),
        "failed": field(6, message(_1=5, _2=2, _3="checksum differs", _4=40)),
        "body": field(7, field(1, placement())),
        "goodbye": field(8, message(_1="finished")),
    }
    down = {
        "welcome": field(1, message(_1=7, _2="0.1.0")),
        "propose": field(2, message(_1=7, _2=5, _3=4, _4=digest(), _5=digest(), _7=0, _8=2, _9="worth it", _10=0, _11=9) +
                         field(6, layer(0, [1, 0, 2, 3, 4, 5]))),
        "cancel": field(3, message(_1=5, _2="too slow")),
        "report_interval": field(4, message(_1=50, _2=100)),
        "need": field(5, message(_1=digest())),
        "drain": field(6, message(_1=10000)),
        "welcome-waits": field(1, message(_1=7, _2="0.1.0", _3="run 2 is live and its steps advance")),
        "keep": field(7, message(_1=2, _2=memory())),
    }
    return up, down


def write_stream_and_core():
    up, down = stream_messages()
    for kind, messages in (("up", up), ("down", down)):
        for name, content in messages.items():
            save("stream", f"{kind}-{name}", content)
    # Operations of core_fuzz.cc: 1 all connect, 2 deliver, 5 report, 6 solve, 7 vote, 8 clock, 10 restart,
    # 13 reserve a version, 14 lose the store, 15 change a run.
    reports = b"".join(bytes([5, rank, 0, 9, 0, 0, 1]) for rank in range(3))
    solved = bytes([6, 1, 1, 2, 1, 2, 1, 2, 1, 2])
    rebalance = bytes([1]) + reports + solved + bytes([2, 7, 8, 0, 2, 7, 8, 0, 2])
    save("core", "rebalance", rebalance)
    save("core", "failed-transfer", bytes([1]) + reports + solved + bytes([2, 7, 8, 1, 2]))
    save("core", "restart", bytes([1]) + reports + solved + bytes([2, 10, 1, 2, 7, 8, 0, 2]))
    save("core", "store-fails", bytes([1]) + reports + bytes([11, 1, 1]) + solved + bytes([11, 0, 0, 8, 14, 2]))
    save("core", "cancelled", bytes([1]) + reports + solved + bytes([8, 17, 2, 8, 17, 2]))
    save("core", "new-run", bytes([1, 12, 0, 0, 1, 12, 1, 0, 1, 12, 2, 0, 1, 9, 0, 9, 1, 9, 2, 1]) + reports)
    save("core", "reserved", bytes([1, 13, 1, 13, 10, 1, 13, 2, 13]))
    save("core", "lost-store", bytes([1]) + reports + solved + bytes([2, 7, 8, 1, 2, 14, 1, 1, 2, 16, 0]))
    save("core", "carried", bytes([1, 2, 15, 0, 3, 1, 0, 0, 2, 14, 0, 1, 2, 15, 1, 1, 9, 1, 1, 2]))
    save("core", "memory", bytes([1, 15, 0, 2, len(memory())]) + memory() + bytes([14, 1, 1, 2]))
    save("core", "unknown-digest", bytes([10, 12, 0, 2, 1, 2, 1, 2, 1, 2, 1, 2, 12, 0, 3, 9, 0, 0, 2, 1, 2]))
    for name, content in up.items():
        if len(content) < 256:
            save("core", f"says-{name}", bytes([1, 17, 0, len(content)]) + content)


def npy(descr, shape, data, version=1):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    prefix = 10 if version == 1 else 12
    text += " " * (-(prefix + len(text) + 1) % 64) + "\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + data


def npz(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content)  # dated 1980
    return out.getvalue()


def write_files():
    load = struct.pack("<12q", *range(12))
    save("load", "i8.npy", npy("<i8", (2, 6), load))
    save("load", "f4-v2.npy", npy("<f4", (2, 6), struct.pack("<12f", *range(12)), 2))
    save("load", "windows.npy", npy("<i8", (2, 1, 6), load))
    save("load", "load.npz", npz({"load": npy("<i8", (2, 6), load)}))
    header = b'{"0_3":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}'
    save("load", "safetensors", struct.pack("<Q", len(header)) + header + struct.pack("<2q", 1, 2))
    slots = struct.pack("<8q", 0, 1, 2, 0, 2, 1, 0, 1)
    save("placement", "p2l.npy", npy("<i8", (2, 4), slots))
    save("placement", "maps.npz", npz({
        "physical_to_logical_map": npy("<i8", (2, 4), slots),
        "logical_to_physical_map": npy("<i8", (2, 3, 2), struct.pack("<12q", 0, 3, 1, -1, 2, -1, 2, -1, 1, 3, 0, -1)),
        "logical_replica_count": npy("<i8", (2, 3), struct.pack("<6q", 2, 1, 1, 1, 2, 1))}))


def write_store():
    def row(numbers, slots, ranks):
        return b"EPLBPLC1" + struct.pack(f"<{len(numbers)}i", *numbers) + struct.pack(
            f"<{len(slots) + len(ranks)}i", *slots, *ranks)
    save("store", "static", row([2, 3, 4, 2, 1, 1], [0, 1, 2, 0, 2, 1, 0, 1], [0, 0, 0, 1, 0, 0, 0, 1]))
    save("store", "bad-rank", row([1, 2, 2, 1, 1, 1], [0, 1], [1, 0]))
    save("store", "huge-shape", row([1 << 30, 3, 1 << 30, 2, 1, 1], [0], [0]))
    save("store", "short", b"EPLBPLC1")


def write_memory():
    save("memory", "full", memory())
    save("memory", "serial-only", message(_2=1))
    save("memory", "too-many-gone", b"".join(field(5, message(_1=f"l{n}", _2=n + 1)) for n in range(17)))
    save("memory", "not-finite", message(_2=1, _14=float("nan")))
    save("memory", "unknown-field", message(_2=1, _31="later"))


def write_rendezvous():
    # Operations of rendezvous_fuzz.cc: 0 join, 4 clock, 5 another process, 6 restart, 7 any member.
    meet = bytes([0, 6, 0, 7, 0, 8, 4, 12])  # a run with an id of its own, all_gather 0
    save("rendezvous", "meets", meet + meet[:6] + meet[:6])
    save("rendezvous", "restart-between-answers", meet + bytes([0, 6, 0, 7, 6, 0, 6, 0, 7, 0, 8]))
    save("rendezvous", "one-id", bytes([0, 0, 0, 4, 0, 2, 0, 1, 4, 12, 0, 3, 0, 5, 4, 15]))
    save("rendezvous", "mixed-late", bytes([0, 0, 0, 4, 0, 2, 4, 12, 0, 0, 0, 4, 0, 2, 4, 15, 0, 3, 0, 1, 0, 5, 4, 12]))
    save("rendezvous", "stand-in", bytes([0, 9, 0, 10, 5, 10, 0, 10, 0, 11, 4, 12, 0, 9, 0, 10]))
    save("rendezvous", "stray", bytes([7, 1, 65, 0, 2, 2, 5, 9, 40, 2, 66, 67, 0]))


def write_frames():
    def frame(kind, values=(), ranks=(), why=b"", op=1):
        return (struct.pack("<IBBBBQIIII", 0x43564C45, kind, op, 0, 0, 1, len(values), len(ranks), len(why), 0) +
                struct.pack(f"<{len(values)}q", *values) + struct.pack(f"<{len(ranks)}i", *ranks) + why)
    save("frame", "up", frame(1, values=(5, -5, 7, -7, 9, -9)))
    save("frame", "two", frame(2, values=(1,)) + frame(3))
    save("frame", "report", frame(4, ranks=(3, 4), why=b"rank 3 is late"))
    save("frame", "too-many-values", frame(1, values=range(65)))
    nonce = bytes(range(32))
    for role, name in ((1, "control"), (2, "rows")):
        save("frame", f"hello-{name}", b"EPLBHS01" + struct.pack("<III", role, 0, 1) + nonce + bytes(32))
    save("frame", "row", struct.pack("<IIiiQqqqqQQ", 0x57524C45, 2, 1, 0, 1, 4096, 0, 0, 16, 0, 0) + bytes(16))
    save("frame", "address", "eplb-rows-1\n10.0.0.1:4711\n@eplb-rows-1\nboot\n4096")


if __name__ == "__main__":
    write_stream_and_core()
    write_files()
    write_store()
    write_memory()
    write_rendezvous()
    write_frames()
