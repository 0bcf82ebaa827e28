"""Python objects between two processes over a socket, the contents of large arrays through shared memory."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import socket
import struct
from typing import Any

_LARGE = 1 << 16
"""Bytes from which on the contents of an array are not sent through the socket."""
SHARED = hasattr(os, "memfd_create")
"""Whether there is anonymous memory."""
_HEADER = struct.Struct("<QQ")


class Channel:
    """One end of a socket pair, for whole objects.

    The socket carries the pickled object without the contents of its large arrays. These lie in anonymous memory, whose
    file descriptor goes with it; they count against no size of `/dev/shm`. Where the system has none, all goes through
    the socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, value: object) -> None:
        """Send an object. OSError where nobody is left to receive it, or no memory for it: then nothing is sent."""
        stream = io.BytesIO()
        views = _Pickler(stream).split(value)
        text = stream.getbuffer()
        size = sum(view.nbytes for view in views)
        with contextlib.ExitStack() as inside:
            memory = None
            if size:  # before anything is sent: where there is no room, the other end waits for the next object
                memory = os.memfd_create("oblivionis")
                inside.callback(os.close, memory)
                for view in views:
                    while view.nbytes:
                        view = view[os.write(memory, view) :]
            self._socket.sendall(_HEADER.pack(text.nbytes, size))
            self._socket.sendall(text)
            if memory is not None:
                socket.send_fds(self._socket, [b"\0"], [memory])

    def receive(self) -> Any:
        """The next object. EOFError where the other end is closed."""
        length, size = _HEADER.unpack(self._exactly(_HEADER.size))
        text = self._exactly(length)
        if not size:
            return pickle.loads(text)
        _, received, _, _ = socket.recv_fds(self._socket, 1, 1)
        if not received:
            raise EOFError("the other process has ended, or this one has no descriptor left")
        (memory,) = received
        try:
            with mmap.mmap(memory, size, prot=mmap.PROT_READ) as content:
                return _Unpickler(text, content).load()
        finally:
            os.close(memory)

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view.nbytes:
            if not (got := self._socket.recv_into(view)):
                raise EOFError("the other process has ended")
            view = view[got:]
        return data

    def hang_up(self) -> None:
        """Who sends or receives at either end is told that the other has ended."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class _Pickler(pickle.Pickler):
    """Leaves out the contents of large arrays, Flower's (bytes) and NumPy's (buffers)."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self._views, self._end = list[memoryview](), 0

    def split(self, value: object) -> list[memoryview]:
        """Write `value` to the stream, without the contents that are returned."""
        self.dump(value)
        return self._views

    def persistent_id(self, obj: object) -> tuple[int, int, bool] | None:
        if not (SHARED and isinstance(obj, bytes | pickle.PickleBuffer)):
            return None
        view = pickle.PickleBuffer(obj).raw()
        if view.nbytes < _LARGE:
            return None
        self._views.append(view)
        first, self._end = self._end, self._end + view.nbytes
        return first, self._end, view.readonly


class _Unpickler(pickle.Unpickler):
    """Takes the contents of large arrays from `content`."""

    def __init__(self, text: bytearray, content: mmap.mmap) -> None:
        super().__init__(io.BytesIO(text))
        self._content = content

    def persistent_load(self, pid: Any) -> bytes | bytearray:
        first, end, readonly = pid
        with memoryview(self._content) as whole:
            return (bytes if readonly else bytearray)(whole[first:end])
