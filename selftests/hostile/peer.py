# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""One end of an RDMA connection, controlled through pyverbs.

The Queue Pair is not created by the connection manager, so a case can move it to
any state, and chooses every message, handle and private datum. This file contains
nothing specific to RPC-over-RDMA.
"""

import contextlib
import errno
import functools
import logging
import os
import select
import time

from pyverbs.addr import AH  # noqa: F401  (pyverbs.qp needs it loaded)
from pyverbs.cmid import CMEvent, CMEventChannel, CMID, AddrInfo, ConnParam
from pyverbs.cm_enums import (
    RAI_PASSIVE,
    RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_CONNECT_REQUEST,
    RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_ROUTE_RESOLVED,
    RDMA_CM_EVENT_TIMEWAIT_EXIT,
    RDMA_PS_TCP,
)
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_MW_BIND,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_MW_TYPE_2,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_INIT,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPT_RC,
    IBV_SEND_SIGNALED,
    IBV_WC_RECV,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_INV,
    IBV_WR_BIND_MW,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_INV,
)
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

TIMEOUT = 20.0
ACCEPTANCE = 0.1
with open("/proc/cmdline", encoding="ascii") as _file:
    IWARP = "guest.device=siw" in _file.read()
# rxe passes on the kernel's flag (1 << 2); libibverbs uses another one.
WITH_INV = int(IBV_WC_WITH_INV) | 1 << 2
# As a number: pyverbs' flags take long to compare.
RECEIVED = int(IBV_WC_RECV)
# Kinds of Work Requests, in the upper half of wr_id. The lower half is a slot of the inbox, or the
# number of messages whose Sends have completed.
SEND, REMOTE = 1 << 32, 2 << 32


# pyverbs looks its logger up for each object that it makes.
logging.getLogger = functools.cache(logging.getLogger)


class Closed(Exception):
    """The connection has ended, or was never established."""


class Timeout(Exception):
    """No event arrived in time."""


class Device:
    """An opened RDMA device and a protection domain."""

    def __init__(self, name="rdma0"):
        self.context = Context(name=name)
        self.pd = PD(self.context)

    def region(self, length, data=None):
        """Memory that the other end may read and write."""
        return Region(self, length, data)


class Region:
    """Register memory, filled with `data`, or with bytes 0xee."""

    def __init__(self, device, length, data=None):
        self.length = length
        self.mr = MR(device.pd, length,
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ
                     | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND)
        self.fill(data)

    @property
    def rkey(self):
        """Return the handle."""
        return self.mr.rkey

    @property
    def address(self):
        """Return the offset of the first byte."""
        return self.mr.buf

    def fill(self, data=None):
        """Replace the contents."""
        data = b"\xee" * self.length if data is None else data
        if data:
            self.mr.write(data, len(data))

    def read(self, length, offset=0):
        """Return the contents."""
        return self.mr.read(length, offset) if length else b""

    def close(self):
        """Deregister the memory, which invalidates the handle."""
        self.mr.close()


class Events:
    """A connection manager event channel with a time limit for waits."""

    def __init__(self):
        before = set(self._descriptors())
        self.channel = CMEventChannel()
        self.fd = (set(self._descriptors()) - before).pop()
        os.set_blocking(self.fd, False)

    @staticmethod
    def _descriptors():
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").endswith("/rdma_cm"):
                    yield int(name)
            except OSError:
                pass

    def get(self, timeout=0.0):
        """Return the next event, or None. The caller closes it."""
        if not select.select([self.fd], [], [], timeout)[0]:
            return None
        return CMEvent(self.channel)

    def expect(self, kind, timeout=TIMEOUT):
        """Return the private data of the next event, which must be of `kind`."""
        event = self.get(timeout)
        if event is None:
            raise Timeout(f"no connection manager event in {timeout} s")
        got, text = event.event_type, event.event_str()
        private = event.private_data
        event.close()
        if got != kind:
            raise Closed(f"connection manager: {text}")
        return private

    def close(self):
        """Close the channel."""
        self.channel.close()


class Endpoint:
    """A Queue Pair with posted Receives, and its connection."""

    def __init__(self, device, events, cmid, receives=64, size=4096, sends=64, posted=None):
        self.device, self.events, self.cmid = device, events, cmid
        self.receives, self.size, self.sends = receives, size, sends
        # With `posted`, only so many Receives are posted at first, and none automatically later.
        self.posted, self.refill = receives if posted is None else posted, posted is None
        self.closed = None
        self.private = b""
        self.cq = CQ(device.context, receives + 2 * sends + 16)
        cap = QPCap(max_send_wr=sends + 8, max_recv_wr=max(receives, 1),
                    max_send_sge=1, max_recv_sge=1)
        self.qp = QP(device.pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=self.cq, rcq=self.cq,
                                           cap=cap, sq_sig_all=0))
        self.inbox = MR(device.pd, max(receives, 1) * size, IBV_ACCESS_LOCAL_WRITE)
        self.outbox_size = 8192
        self.outbox = MR(device.pd, sends * self.outbox_size, IBV_ACCESS_LOCAL_WRITE)
        self.next_send, self.unsent = 0, 0
        self.receive_wrs = {}
        self.messages = []
        self.windows = []
        self.remote_status = None

    # -- states --

    def _modify(self, state):
        attr, mask = self.cmid.init_qp_attr(state)
        self.qp.modify(attr, mask)

    def prepare(self):
        """Move to INIT, permit RDMA Read and Write, and post the Receives."""
        attr, mask = self.cmid.init_qp_attr(IBV_QPS_INIT)
        attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE
        self.qp.modify(attr, mask)
        for slot in range(self.posted):
            self.post_receive(slot)

    def run(self):
        """Move to Ready to Send; the iWARP connection manager does that by itself."""
        if not IWARP:
            self._modify(IBV_QPS_RTR)
            self._modify(IBV_QPS_RTS)

    def fail(self):
        """Move to ERROR, without notifying the other end."""
        self.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)

    def post_receive(self, slot):
        """Post the Receive number `slot`."""
        work = self.receive_wrs.get(slot)
        if work is None:
            sge = SGE(self.inbox.buf + slot * self.size, self.size, self.inbox.lkey)
            work = self.receive_wrs[slot] = RecvWR(wr_id=slot, num_sge=1, sg=[sge])
        self.qp.post_recv(work)

    # -- messages --

    def send(self, *messages, invalidate=None):
        """Post Sends (With Invalidate), all at once, with one completion at the end."""
        while self.unsent + len(messages) > self.sends:
            self._progress(TIMEOUT)
        if self.closed:
            raise Closed(self.closed)
        # A Work Request does not keep the next one alive.
        chain = [None]
        for data in reversed(messages):
            completed = 0 if chain[-1] else len(messages)
            chain.append(self._send_wr(data, invalidate, chain[-1], completed))
        self._post(chain[-1])
        self.unsent += len(messages)

    def _send_wr(self, data, invalidate, following, completed):
        at = self.next_send * self.outbox_size
        self.next_send = (self.next_send + 1) % self.sends
        if data:
            self.outbox.write(data, len(data), at)
        sge = SGE(self.outbox.buf + at, len(data), self.outbox.lkey)
        work = SendWR(wr_id=SEND | completed, num_sge=1, sg=[sge], next_wr=following,
                      opcode=IBV_WR_SEND if invalidate is None else IBV_WR_SEND_WITH_INV,
                      send_flags=IBV_SEND_SIGNALED if completed else 0,
                      imm_data=0 if invalidate is None else invalidate)
        if IWARP and invalidate is not None:
            work.set_wr_rdma(invalidate, 0)  # libsiw takes the handle from there
        return work

    def _post(self, work):
        """Post Work Requests on the Send Queue.

        siw refuses them while a connection ends, until it flushes them; the exception does not
        say why."""
        try:
            self.qp.post_send(work)
        except PyverbsRDMAError:
            if not IWARP:
                raise
            with contextlib.suppress(Timeout):
                self.wait_closed()
            if not self.closed:
                raise
            raise Closed(self.closed) from None

    def bind(self, region):
        """Return the handle of a new type 2 memory window over all of `region`."""
        window = MW(self.device.pd, IBV_MW_TYPE_2)
        self.windows.append(window)
        info = MWBindInfo(region.mr, region.address, region.length,
                          IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)
        work = SendWR(wr_id=SEND | 1, num_sge=0, opcode=IBV_WR_BIND_MW,
                      send_flags=IBV_SEND_SIGNALED)
        handle = (window.rkey & ~0xff) | (window.rkey + 1 & 0xff)
        work.set_bind_wr(window, info)
        self._post(work)
        self.unsent += 1
        self.wait_sent()
        if self.closed:
            raise Closed(self.closed)
        return handle

    def remote_read(self, handle, offset, region, length):
        """RDMA Read into `region`; return whether it was permitted."""
        return self._remote(IBV_WR_RDMA_READ, handle, offset, region, length)

    def remote_write(self, handle, offset, region, length):
        """RDMA Write from `region`; return whether it was permitted or, over iWARP, was sent."""
        return self._remote(IBV_WR_RDMA_WRITE, handle, offset, region, length)

    def may_write(self, handle, offset, region, length):
        """Like `remote_write`, for a Write to be refused; over iWARP the other end then closes."""
        if not self.remote_write(handle, offset, region, length):
            return False
        if IWARP:
            try:
                self.wait_closed(2)
                return False
            except Timeout:
                pass
        return True

    def _remote(self, opcode, handle, offset, region, length):
        sge = SGE(region.address, length, region.mr.lkey)
        work = SendWR(wr_id=REMOTE, num_sge=1, sg=[sge], opcode=opcode,
                      send_flags=IBV_SEND_SIGNALED)
        work.set_wr_rdma(handle, offset)
        self.remote_status = None
        if self.closed:
            raise Closed(self.closed)
        self._post(work)
        try:
            while self.remote_status is None:
                self._progress(1 if IWARP else TIMEOUT)
        except Timeout:
            if not IWARP:
                raise
            # When a connection ends, siw does not complete its Send Queue, see
            # Documentation/known-issues.rst.
            self.closed = "the Send Queue stands still"
            return False
        if self.remote_status == IBV_WC_SUCCESS:
            return True
        # iWARP reports it in a message that ends the connection.
        if self.remote_status != IBV_WC_REM_ACCESS_ERR and not IWARP:
            raise Closed(f"completion status {self.remote_status}")
        return False

    def _progress(self, timeout):
        """Take completions and events until one changes the state; raise Timeout if none does."""
        deadline = time.monotonic() + timeout
        pause = 0.0005
        while True:
            news = self._completions()
            event = self.events.get() if self.events else None
            if event is not None:
                kind = event.event_type
                if kind not in (RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_TIMEWAIT_EXIT):
                    self.closed = self.closed or event.event_str()
                    news = True
                event.close()
                if kind == RDMA_CM_EVENT_DISCONNECTED:
                    self.cmid.disconnect()
            if news:
                return
            if time.monotonic() > deadline:
                raise Timeout(f"nothing in {timeout} s")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    def _completions(self):
        count, completions = self.cq.poll(16)
        for done in completions:
            if done.wr_id & SEND:
                self.unsent -= done.wr_id & 0xffffffff
            elif done.wr_id & REMOTE:
                self.remote_status = done.status
            if done.status != IBV_WC_SUCCESS:
                self.closed = self.closed or f"completion status {done.status}"
            elif int(done.opcode) & RECEIVED:
                data = self.inbox.read(done.byte_len, done.wr_id * self.size) \
                    if done.byte_len else b""
                inv = done.imm_data if int(done.wc_flags) & WITH_INV else None
                self.messages.append((data, inv))
                if self.refill and not self.closed:
                    self.post_receive(done.wr_id)
        return count > 0

    def poll(self):
        """Return the next message if it has arrived, otherwise None."""
        self._completions()
        return self.messages.pop(0) if self.messages else None

    def receive(self, timeout=TIMEOUT):
        """Return the next message: (bytes, invalidated handle or None)."""
        deadline = time.monotonic() + timeout
        while not self.messages:
            if self.closed:
                raise Closed(self.closed)
            self._progress(max(0.0, deadline - time.monotonic()))
        return self.messages.pop(0)

    def wait_closed(self, timeout=TIMEOUT):
        """Wait until the other end has closed."""
        deadline = time.monotonic() + timeout
        while not self.closed:
            self._progress(max(0.0, deadline - time.monotonic()))

    def wait_sent(self):
        """Wait until all Sends have completed: except over iWARP, the other end's device has them."""
        while self.unsent:
            self._progress(TIMEOUT)

    def disconnect(self):
        """Disconnect."""
        try:
            self.cmid.disconnect()
        except Exception:  # pyverbs: the id may be disconnected already
            pass

    def close(self):
        """Disconnect and free everything."""
        self.closed = self.closed or "by us"
        self.disconnect()
        for window in self.windows:  # each holds a reference to the Queue Pair
            window.close()
        self.qp.close()
        self.cq.close()
        self.inbox.close()
        self.outbox.close()
        while self.events and (event := self.events.get()) is not None:
            event.close()
        self.cmid.close()
        if self.events:
            self.events.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _param(endpoint, private, resources, depth, rnr_retry, retry=6):
    param = ConnParam(resources=resources, depth=depth, retry=retry, rnr_retry=rnr_retry,
                      qp_num=endpoint.qp.qp_num, data_len=len(private))
    if private:
        param.set_private_data(private)
    return param


def connect(device, address, port, private=b"", **options):
    """Connect; `options` are those of `_connect`."""
    for _ in range(8):
        try:
            return _connect(device, address, port, private, **options)
        except PyverbsRDMAError as error:
            # Over iWARP the port that rdma_cm has chosen may be one of a socket.
            if error.error_code != errno.EADDRINUSE:
                raise
    raise Closed("eight ports in use")


def _connect(device, address, port, private, receives=64, size=4096, sends=64, posted=None,
             resources=16, depth=16, rnr_retry=7, retry=6, timeout=TIMEOUT, establish=True):
    """Connect; `resources` and `depth` are the RDMA Reads in flight from and to the other end.

    Without `establish`, the acceptance of the other end is not confirmed."""
    events = Events()
    cmid = CMID(creator=events.channel, port_space=RDMA_PS_TCP)
    endpoint = None
    try:
        route = AddrInfo(dst=address, dst_service=str(port), port_space=RDMA_PS_TCP)
        cmid.resolve_addr(route, 5000)
        events.expect(RDMA_CM_EVENT_ADDR_RESOLVED)
        cmid.resolve_route(5000)
        events.expect(RDMA_CM_EVENT_ROUTE_RESOLVED)
        endpoint = Endpoint(device, events, cmid, receives, size, sends, posted)
        endpoint.prepare()
        cmid.connect(_param(endpoint, private, resources, depth, rnr_retry, retry))
        endpoint.private = events.expect(
            RDMA_CM_EVENT_ESTABLISHED if IWARP else RDMA_CM_EVENT_CONNECT_RESPONSE, timeout)
        endpoint.run()
        if IWARP:
            # siw may lose what comes before the other end's thread is done with its acceptance,
            # see Documentation/known-issues.rst.
            time.sleep(ACCEPTANCE)
        elif establish:
            cmid.establish()
        return endpoint
    except BaseException:
        if endpoint is not None:
            endpoint.close()
        else:
            cmid.close()
            events.close()
        raise


@contextlib.contextmanager
def nothing_between():
    """Run without preemption by the other end: siw loses messages that arrive before the acceptance
    is complete, see Documentation/known-issues.rst."""
    if IWARP:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        if IWARP:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Listener:
    """The passive side: one connection at a time."""

    def __init__(self, device, address, port):
        self.device = device
        self.events = Events()
        self.cmid = CMID(creator=self.events.channel, port_space=RDMA_PS_TCP)
        self.cmid.bind_addr(AddrInfo(src=address, src_service=str(port),
                                     port_space=RDMA_PS_TCP, flags=RAI_PASSIVE))
        self.cmid.listen(16)
        self.refuse = 0
        self.broken = 0

    def poll(self, private, current, **options):
        """Handle events; return the Endpoint that is connected now, or None. Refuses the next
        `refuse` connections, and accepts the next `broken` ones with a Queue Pair that receives nothing.

        Events do not name their connection. The client has only one connection, so they
        belong to `current`."""
        event = self.events.get()
        if event is None:
            return current
        kind = event.event_type
        cmid = None
        if kind == RDMA_CM_EVENT_CONNECT_REQUEST:
            cmid = CMID(creator=event, listen_id=self.cmid)
        event.close()  # an id cannot be destroyed before its events are acknowledged
        if kind in (RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_DISCONNECTED) and current:
            current.close()
            current = None
        if cmid:
            if self.refuse:
                self.refuse -= 1
                cmid.reject()
                cmid.close()
                return None
            current = Endpoint(self.device, None, cmid, **options)
            current.prepare()
            current.run()
            if self.broken:
                self.broken -= 1
                current.fail()
            try:
                with nothing_between():
                    cmid.accept(_param(current, private, 0, 16, 7))
            except PyverbsRDMAError as error:
                # The client has given up meanwhile.
                if error.error_code != errno.ECONNRESET:
                    raise
                current.close()
                return None
        return current

    def close(self):
        """Accept no further connections."""
        self.cmid.close()
        self.events.close()
