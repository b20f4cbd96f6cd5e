"""TCP doors between ranks and daemons, which tests refuse, freeze, slow down and cut.

A door listens on a port of its own and passes bytes to one target. All doors share one thread; every method of Door is
safe to call from others and returns once the change is active.
"""

import asyncio
import threading

CHUNK = 64 << 10
MOST_UNDER_WAY = 64  # chunks of one direction of a connection


class Doors:
    """The thread that serves all doors of a test."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="doors", daemon=True)
        self.thread.start()

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def open(self, target_port):
        return Door(self, target_port)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


class Door:
    def __init__(self, doors, target_port):
        self.doors = doors
        self.target_port = target_port
        self.delay = 0.0
        self.server = None
        self.writers = set()
        self.tasks = set()
        doors.call(self._start(0))
        self.port = self.server.sockets[0].getsockname()[1]

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.port}"

    def cut(self):
        """Breaks every connection; new ones are accepted."""
        self.doors.call(self._cut())

    def refuse(self):
        """Breaks every connection and refuses new ones until heal()."""
        self.doors.call(self._refuse())

    def freeze(self):
        """No byte passes until heal(), in both directions; new connections are accepted and hear nothing."""
        self.doors.call(self._freeze())

    def slow(self, seconds):
        """Every chunk of bytes is this late until heal()."""
        self.doors.call(self._slow(seconds))

    def heal(self):
        self.doors.call(self._heal())

    def close(self):
        self.doors.call(self._close())

    # ---- on the loop's thread ----

    async def _start(self, port):
        self.open = asyncio.Event()
        self.open.set()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def _cut(self):
        for writer in self.writers:
            writer.transport.abort()

    async def _refuse(self):
        if self.server is not None:
            self.server.close()
            self.server = None
        await self._cut()

    async def _freeze(self):
        self.open.clear()

    async def _slow(self, seconds):
        self.delay = seconds

    async def _heal(self):
        self.delay = 0.0
        if self.server is None:
            await self._start(self.port)
        self.open.set()

    async def _close(self):
        await self._refuse()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)
        self.writers.add(writer)
        far_writer = None
        ways = []
        try:
            await self.open.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            self.writers.add(far_writer)
            if self.server is None:
                return  # it was accepted while the door was being shut
            ways = [asyncio.ensure_future(self._pass(*way)) for way in ((reader, far_writer), (far_reader, writer))]
            await asyncio.gather(*ways)
        except (OSError, asyncio.CancelledError):
            pass  # one end is gone: the other is closed below
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, far_writer):
                if end is not None:
                    self.writers.discard(end)
                    end.transport.abort()
            self.tasks.discard(task)

    async def _pass(self, reader, writer):
        under_way = asyncio.Queue(MOST_UNDER_WAY)
        arrival = asyncio.ensure_future(self._arrive(under_way, writer))
        try:
            while (data := await reader.read(CHUNK)) and not arrival.done():
                await self.open.wait()
                await under_way.put((self.doors.loop.time() + self.delay, data))
            await under_way.put((0, b""))
            await arrival
        finally:
            arrival.cancel()
        raise ConnectionResetError("the end of the stream")

    async def _arrive(self, under_way, writer):
        while True:
            due, data = await under_way.get()
            if not data:
                return
            await asyncio.sleep(max(0.0, due - self.doors.loop.time()))
            await self.open.wait()
            writer.write(data)
            await writer.drain()
