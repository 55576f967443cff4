// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tests of `kapi/rdma` over a device of this machine.
//!
//! It is a part of `kapi` during tests, since the functions that create memory runs and pages from
//! pointers are private to `kapi`.

mod ends;

use core::ops::Range;

use kernel::{
    ffi::c_int,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Completion, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
};

use super::{
    bindings,
    ext::{
        lend::{
            Access,
            Lender, //
        },
        memory::MemSeg, //
    },
    fixture::{
        lent,
        long_pause,
        pages,
        pattern,
        spawn, //
    },
    rdma::{
        client::RemovalGuard,
        device::Device,
        mr::Mr,
        recv::{
            RecvBox,
            RecvList, //
        },
        rw::{
            Remote,
            Transfer,
            TransferDir, //
        }, //
    },
    sunrpc::errno::enotconn, //
};

use crate::kapi::ext::atomic::{
    Atomic,
    Relaxed, //
};
use ends::{
    check,
    connect,
    posted,
    End,
    Message,
    Side, //
};

/// Lengths that are registered, written and read.
const LENGTHS: [usize; 6] = [1, 4095, 4097, 65536, 1_000_001, 1 << 20];

/// Registrations in a chain that is longer than the queue.
const LONG_CHAIN: usize = 32;

/// Returns the bytes of `memory` as runs.
fn runs(memory: &[u8]) -> impl Iterator<Item = MemSeg<'_>> {
    let mut rest = memory;
    core::iter::from_fn(move || {
        // SAFETY: The memory is from the heap, and borrowed.
        let seg = unsafe { MemSeg::from_virt(rest.as_ptr(), rest.len()) }?;
        rest = rest.get(seg.len()..)?;
        Some(seg)
    })
}

/// Returns the bytes `range` of a region, as the peer addresses them.
fn remote(mr: &Mr, range: Range<usize>) -> Result<Remote> {
    Ok(Remote {
        addr: mr.offset() + range.start as u64,
        length: u32::try_from(range.len())?,
        handle: mr.handle(),
    })
}

/// Returns a transfer from or to new pages of `len` bytes, filled with the pattern of `seed`.
fn with_pages(len: usize, seed: usize) -> Result<Transfer> {
    let mut transfer = Transfer::new();
    *transfer.unmap() = pages(len, seed)?;
    Ok(transfer)
}

/// Returns Writes of the pattern to `mr`, as two segments that meet inside a page, unless it is too
/// short.
fn in_halves(server: &Side, mr: &Mr, len: usize) -> Result<Transfer> {
    let mut transfer = with_pages(len, len)?;
    let half = len / 2;
    for (from, to) in [(0, half), (half, len)] {
        if from < to {
            transfer.add(
                &server.qp,
                TransferDir::Write,
                from..to,
                remote(mr, from..to)?,
            )?;
        }
    }
    Ok(transfer)
}

/// The server writes to `mr` and invalidates it with its message. The bytes must be there.
fn remote_write(client: &Side, server: &Side, mr: &mut Mr, memory: &[u8]) -> Result {
    let lender = Lender::new(None)?;
    let len = memory.len();
    let taken = mr.map(
        &mut lent(&lender, runs(memory), Access::RemoteWrite),
        0x8166,
    )?;
    check(
        taken == len && mr.length() as usize == len,
        "one registration for all",
    )?;
    check(mr.offset() >> 32 == 0x8166, "the tag is in the offset")?;
    client.send(b"write", Some(mr))?;
    check(
        !mr.is_fenced() && mr.unmap().is_err(),
        "registered memory is kept",
    )?;
    server.expect(b"write")?;

    let handle = mr.handle();
    let message = Message::new(&server.pd, b"written", in_halves(server, mr, len)?)?;
    posted(server.qp.post::<Message>(message, |m, chain| {
        chain.transfer(&m.transfer)?;
        check(
            chain.transfer(&m.transfer).is_err(),
            "a transfer is chained once",
        )?;
        check(
            chain.wrs() == m.transfer.sqes(),
            "entries of the Send Queue",
        )?;
        chain.send_with_invalidate(&m.text, handle)
    }))?;
    let (_, result) = server.end.completion()?;
    check(result.is_ok(), "the Write succeeds")?;

    let buffer = client.end.receive()?;
    check(
        buffer.bytes() == b"written",
        "the message comes after the Write",
    )?;
    let invalidated = buffer.invalidated().ok_or(EIO)?;
    check(
        mr.invalidated_by(invalidated) && mr.is_fenced(),
        "remote invalidation fences",
    )?;
    check(!mr.invalidated_by(invalidated), "and does so once")?;
    mr.unmap()?;
    client.repost(buffer)?;
    let same = |(i, byte): (usize, &u8)| *byte == pattern(i, len);
    check(
        memory.iter().enumerate().all(same),
        "what was written is there",
    )
}

/// The server reads `mr`, and the client invalidates it. The bytes must have arrived.
fn remote_read(client: &Side, server: &Side, mr: &mut Mr, memory: &[u8]) -> Result {
    let lender = Lender::new(None)?;
    let (len, before) = (memory.len(), mr.handle());
    mr.map(&mut lent(&lender, runs(memory), Access::RemoteRead), 1)?;
    check(mr.handle() != before, "a handle is not used twice")?;
    client.send(b"read", Some(mr))?;
    server.expect(b"read")?;

    // The pages have other bytes, which the Read has to overwrite.
    let mut transfer = with_pages(len, len + 1)?;
    transfer.add(&server.qp, TransferDir::Read, 0..len, remote(mr, 0..len)?)?;
    let message = Message::new(&server.pd, b"-", transfer)?;
    posted(
        server
            .qp
            .post::<Message>(message, |m, chain| chain.transfer(&m.transfer)),
    )?;
    let (mut message, result) = server.end.completion()?;
    check(result.is_ok(), "the Read succeeds")?;
    let mut bytes = KVec::from_elem(0, len, GFP_KERNEL)?;
    message.as_mut().pages().copy_out(0, &mut bytes)?;
    let same = |(i, byte): (usize, &u8)| *byte == pattern(i, len);
    check(bytes.iter().enumerate().all(same), "what was read is there")?;

    let message = Message::new(&client.pd, b"-", Transfer::new())?;
    posted(
        client
            .qp
            .post::<Message>(message, |_, chain| chain.local_inv(mr)),
    )?;
    let (_, result) = client.end.completion()?;
    let Ok(wc) = result else {
        return check(false, "the invalidation succeeds");
    };
    check(
        mr.completed_by(&wc) && mr.is_fenced(),
        "local invalidation fences",
    )?;
    mr.unmap()
}

/// Chains that are not posted leave no trace.
fn unposted(client: &Side) -> Result {
    let lender = Lender::new(None)?;
    let memory = KVec::from_elem(0_u8, PAGE_SIZE, GFP_KERNEL)?;
    let mut mr = Mr::new(&client.pd, 1)?;
    mr.map(&mut lent(&lender, runs(&memory), Access::RemoteRead), 0)?;
    let message = Message::new(&client.pd, b"-", Transfer::new())?;
    let result = client.qp.post::<Message>(message, |_, chain| {
        chain.reg_mr(&mut mr)?;
        Err(ENXIO)
    });
    let error = result.err().ok_or(EIO)?;
    check(error.error == ENXIO, "the error is that of the builder")?;
    check(!mr.is_fenced(), "without proof it counts as registered")?;
    mr.retract(error.unposted());
    check(mr.is_fenced(), "with proof it does not")?;
    let empty = client.qp.post::<Message>(error.owner, |_, _| Ok(()));
    check(
        empty.is_err_and(|e| e.error == EINVAL),
        "an empty chain is refused",
    )?;
    mr.unmap()
}

/// Memory is not accessible after its invalidation: a Write to it breaks the connection.
fn late_write(client: &Side, server: &Side) -> Result {
    let memory = KVec::from_elem(0_u8, PAGE_SIZE, GFP_KERNEL)?;
    let mut mr = Mr::new(&client.pd, 1)?;
    remote_write(client, server, &mut mr, &memory)?;
    let mut transfer = with_pages(PAGE_SIZE, 0)?;
    transfer.add(
        &server.qp,
        TransferDir::Write,
        0..PAGE_SIZE,
        remote(&mr, 0..PAGE_SIZE)?,
    )?;
    let message = Message::new(&server.pd, b"late", transfer)?;
    posted(server.qp.post::<Message>(message, |m, chain| {
        chain.transfer(&m.transfer)?;
        chain.send(&m.text)
    }))?;
    let (_, result) = server.end.completion()?;
    // An iWARP device completes a Write when it is sent.
    if !client.id.port().ok_or(ENODEV)?.iwarp() {
        check(
            result.is_err_and(|e| !e.flushed()),
            "a chain fails as its Write does, not as the flushed Send behind it",
        )?;
    }
    let same = |(i, byte): (usize, &u8)| *byte == pattern(i, PAGE_SIZE);
    check(memory.iter().enumerate().all(same), "and changes nothing")
}

/// A closed QP is a fence, and accepts no posts.
fn closed(client: &Side) -> Result {
    let lender = Lender::new(None)?;
    let memory = KVec::from_elem(0_u8, PAGE_SIZE, GFP_KERNEL)?;
    let mut mr = Mr::new(&client.pd, 1)?;
    mr.map(&mut lent(&lender, runs(&memory), Access::RemoteWrite), 0)?;
    let message = Message::new(&client.pd, b"bye", Transfer::new())?;
    posted(client.qp.post::<Message>(message, |m, chain| {
        chain.reg_mr(&mut mr)?;
        chain.send(&m.text)
    }))?;
    client.qp.close();
    check(
        client.end.sent.lock().is_some(),
        "a drained owner has come back",
    )?;
    check(mr.is_fenced(), "a drained QP fences")?;
    mr.unmap()?;
    let message = Message::new(&client.pd, b"late", Transfer::new())?;
    let late = client
        .qp
        .post::<Message>(message, |m, chain| chain.send(&m.text));
    check(
        late.is_err_and(|e| e.error == enotconn()),
        "a late Send is refused",
    )?;
    let mut list = RecvList::new();
    list.push(RecvBox::new(&client.pd, 64, 0)?);
    list.push(RecvBox::new(&client.pd, 64, 1)?);
    let late = client.qp.post_recvs(list);
    check(
        late.is_err_and(|(e, list)| e == enotconn() && list.len() == 2),
        "late Receives are handed back",
    )
}

/// A chain of which the device accepts only a part completes when the QP is closed.
fn in_part(address: u32) -> Result {
    let lender = Lender::new(None)?;
    let (client, _server) = connect(address, 2)?;
    let memory = KVec::from_elem(0_u8, PAGE_SIZE, GFP_KERNEL)?;
    let mut mrs = KVec::with_capacity(LONG_CHAIN, GFP_KERNEL)?;
    for _ in 0..LONG_CHAIN {
        let mut mr = Mr::new(&client.pd, 1)?;
        mr.map(&mut lent(&lender, runs(&memory), Access::RemoteRead), 0)?;
        mrs.push(mr, GFP_KERNEL)?;
    }
    let message = Message::new(&client.pd, b"part", Transfer::new())?;
    posted(client.qp.post::<Message>(message, |m, chain| {
        for mr in mrs.iter_mut() {
            chain.reg_mr(mr)?;
        }
        chain.send(&m.text)
    }))?;
    check(
        client.end.broken.load(Relaxed),
        "the device has no room for the chain, and its handler is told",
    )?;
    // Wait for the requests that the device accepted: a full queue cannot be drained.
    fsleep(Delta::from_millis(100));
    check(
        client.end.sent.lock().is_none(),
        "the chain does not complete by itself",
    )?;
    client.qp.close();
    let sent = client.end.sent.lock().take();
    check(
        sent.is_some_and(|(_, result)| result.is_err_and(|e| e.flushed())),
        "closing brings its owner back, as flushed",
    )?;
    check(mrs.iter().all(|mr| mr.is_fenced()), "and fences")
}

/// While this value lives, the device refuses to modify queue pairs.
struct Refusing {
    device: *mut bindings::ib_device,
    modify: Option<ModifyQp>,
    destroy: Option<DestroyQp>,
    /// The end whose failed Receives are counted.
    _end: Arc<End>,
}

/// The driver's operation that destroys queue pairs.
type DestroyQp = unsafe extern "C" fn(*mut bindings::ib_qp, *mut bindings::ib_udata) -> c_int;

/// The original operation of the device, which destroys its queue pairs.
static DESTROY: Atomic<usize> = Atomic::new(0);
/// The end that uses the queue pair that is refused.
static REFUSED_END: Atomic<*mut End> = Atomic::new(core::ptr::null_mut());
/// The number of Receives that had come back when a queue pair was destroyed.
static BACK: Atomic<u32> = Atomic::new(u32::MAX);

/// The driver's operation that modifies queue pairs.
type ModifyQp = unsafe extern "C" fn(
    *mut bindings::ib_qp,
    *mut bindings::ib_qp_attr,
    c_int,
    *mut bindings::ib_udata,
) -> c_int;

/// The number of refusals.
static REFUSED: Atomic<u32> = Atomic::new(0);

impl Refusing {
    fn new(device: &Device, end: &Arc<End>) -> Self {
        unsafe extern "C" fn destroy(
            qp: *mut bindings::ib_qp,
            udata: *mut bindings::ib_udata,
        ) -> c_int {
            // SAFETY: `Refusing` holds the end, and stays as long as this is the operation.
            let failed = unsafe { (*REFUSED_END.load(Relaxed)).failed.load(Relaxed) };
            BACK.store(failed, Relaxed);
            // SAFETY: `Refusing` has stored the operation before it replaced it.
            let original =
                unsafe { core::mem::transmute::<usize, Option<DestroyQp>>(DESTROY.load(Relaxed)) };
            // SAFETY: The contract is the same.
            original.map_or(0, |destroy| unsafe { destroy(qp, udata) })
        }
        unsafe extern "C" fn refuse(
            _: *mut bindings::ib_qp,
            _: *mut bindings::ib_qp_attr,
            _: c_int,
            _: *mut bindings::ib_udata,
        ) -> c_int {
            REFUSED.fetch_add(1, Relaxed);
            EINVAL.to_errno()
        }
        let device = device.as_raw();
        // SAFETY: The device is valid; the entry is read and written atomically.
        let (modify, original) = unsafe {
            REFUSED_END.store(Arc::as_ptr(end).cast_mut(), Relaxed);
            let original = (*device).ops.destroy_qp;
            DESTROY.store(original.map_or(0, |destroy| destroy as usize), Relaxed);
            (*device).ops.destroy_qp = Some(destroy);
            ((*device).ops.modify_qp.replace(refuse), original)
        };
        Refusing {
            device,
            modify,
            destroy: original,
            _end: end.clone(),
        }
    }
}

impl Drop for Refusing {
    fn drop(&mut self) {
        // SAFETY: The device is valid; the entries are written atomically.
        unsafe {
            (*self.device).ops.modify_qp = self.modify;
            (*self.device).ops.destroy_qp = self.destroy;
        }
    }
}

/// If a device refuses to stop a queue pair, twice or always, closing tries again; all posted
/// requests complete in the end, and if the queue pair cannot be stopped, after it is destroyed.
/// Registered memory is returned only when the device has stopped the queue pair, or the region is
/// deregistered.
fn refused(address: u32, for_good: bool) -> Result {
    REFUSED.store(0, Relaxed);
    let (client, server) = connect(address, 64)?;
    let lender = Lender::new(None)?;
    let memory = KVec::from_elem(0_u8, PAGE_SIZE, GFP_KERNEL)?;
    let mut mr = Mr::new(&client.pd, 1)?;
    mr.map(&mut lent(&lender, runs(&memory), Access::RemoteWrite), 0)?;
    client.send(b"region", Some(&mut mr))?;
    server.expect(b"region")?;
    let end = client.end.clone();
    let refusing = Refusing::new(client.id.device().ok_or(ENODEV)?, &end);
    let closed = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
    let also = closed.clone();
    spawn(move || {
        drop(client);
        also.complete_all();
    })?;
    let mut patience = 200;
    while REFUSED.load(Relaxed) < 2 && patience > 0 {
        long_pause();
        patience -= 1;
    }
    let refusing = for_good.then_some(refusing);
    closed.wait_for_completion();
    drop(refusing);
    check(REFUSED.load(Relaxed) >= 2, "it is asked more than once")?;
    check(
        end.failed.load(Relaxed) == ends::RECEIVES,
        "all Receives come back",
    )?;
    check(
        !for_good || BACK.load(Relaxed) == 0,
        "and after the device has forgotten their buffers",
    )?;
    let unmapped = if for_good { Err(EBUSY) } else { Ok(()) };
    check(
        mr.is_fenced() != for_good && mr.unmap() == unmapped && lender.has_all() != for_good,
        "a queue pair fences when the device has stopped it",
    )?;
    drop(mr);
    check(lender.has_all(), "a region returns its memory at last")
}

/// While this value lives, the device creates no queue pairs for Sends of more than one element.
struct Narrow {
    device: *mut bindings::ib_device,
    create: CreateQp,
}

/// The driver's operation that creates queue pairs.
type CreateQp = unsafe extern "C" fn(
    *mut bindings::ib_qp,
    *mut bindings::ib_qp_init_attr,
    *mut bindings::ib_udata,
) -> c_int;

/// The original operation of the device, which creates its queue pairs.
static CREATE: Atomic<usize> = Atomic::new(0);
/// The number of queue pairs that it has refused.
static TOO_WIDE: Atomic<u32> = Atomic::new(0);

impl Narrow {
    fn new(device: &Device) -> Result<Self> {
        unsafe extern "C" fn create(
            qp: *mut bindings::ib_qp,
            attr: *mut bindings::ib_qp_init_attr,
            udata: *mut bindings::ib_udata,
        ) -> c_int {
            // SAFETY: ib_core passes valid attributes.
            if unsafe { (*attr).cap.max_send_sge } > 1 {
                TOO_WIDE.fetch_add(1, Relaxed);
                return ENOMEM.to_errno();
            }
            // SAFETY: `CREATE` was set before this became the operation, from one of that type.
            let create: CreateQp = unsafe { core::mem::transmute(CREATE.load(Relaxed)) };
            // SAFETY: The arguments are those with which ib_core calls the driver.
            unsafe { create(qp, attr, udata) }
        }
        let device = device.as_raw();
        // SAFETY: The device is valid; the entry is read and written atomically.
        let entry = unsafe { &mut (*device).ops.create_qp };
        let original = entry.ok_or(ENODEV)?;
        CREATE.store(original as usize, Relaxed);
        *entry = Some(create);
        Ok(Narrow {
            device,
            create: original,
        })
    }
}

impl Drop for Narrow {
    fn drop(&mut self) {
        // SAFETY: The device is valid; the entry is written atomically.
        unsafe { (*self.device).ops.create_qp = Some(self.create) };
    }
}

/// If a device has no room for a queue of long entries, a queue of shorter ones is requested.
fn narrow(address: u32) -> Result {
    TOO_WIDE.store(0, Relaxed);
    let (first, _) = connect(address, 64)?;
    let narrow = Narrow::new(first.id.device().ok_or(ENODEV)?)?;
    let connected = connect(address, 64);
    drop(narrow);
    let (client, server) = connected?;
    // The number is halved from four to one, for each end.
    check(
        TOO_WIDE.load(Relaxed) == 2 * ends::SEND_SGES.ilog2(),
        "it is asked for fewer each time",
    )?;
    client.send(b"narrow", None)?;
    server.expect(b"narrow")
}

/// The server writes and reads memory of each length.
fn registered(
    client: &Side,
    server: &Side,
    report: &mut dyn FnMut(&str, Result) -> Result,
) -> Result {
    // One more page for memory that does not begin at the start of a page.
    let max_pages = client
        .id
        .device()
        .ok_or(ENODEV)?
        .attrs()
        .max_fast_reg_pages
        .min(257);
    let longest = (max_pages as usize - 1) * PAGE_SIZE;
    let mut mr = Mr::new(&client.pd, max_pages)?;
    for len in LENGTHS.map(|len| len.min(longest)) {
        let memory = KVec::from_elem(0_u8, len, GFP_KERNEL)?;
        let written = remote_write(client, server, &mut mr, &memory);
        report("RDMA Write, fenced by the peer", written)?;
        let read = remote_read(client, server, &mut mr, &memory);
        report("RDMA Read, fenced by us", read)?;
    }
    Ok(())
}

/// Runs all tests over the device with this address.
pub(crate) fn run(address: u32) -> Result {
    let mut number = 0;
    let mut report = |name: &str, result: Result| {
        number += 1;
        let not = if result.is_ok() { "" } else { "not " };
        pr_info!("{not}ok {number} {name}\n");
        result
    };

    let ends = connect(address, 64);
    report(
        "two ends connect",
        ends.as_ref().map(|_| ()).map_err(|e| *e),
    )?;
    let (client, server) = ends?;
    let device = client.id.device().ok_or(ENODEV)?;
    let guard = RemovalGuard::new(device, client.end.clone());
    report(
        "a removal guard is had",
        guard.as_ref().map(|_| ()).map_err(|e| *e),
    )?;
    report(
        "a message goes each way",
        client
            .send(b"hello", None)
            .and_then(|()| server.expect(b"hello"))
            .and_then(|()| server.send(b"world", None))
            .and_then(|()| client.expect(b"world")),
    )?;
    registered(&client, &server, &mut report)?;
    report(
        "a chain that is not posted leaves no trace",
        unposted(&client),
    )?;
    report(
        "invalidated memory is out of reach",
        late_write(&client, &server),
    )?;
    report("a closed QP is a fence", closed(&client))?;
    drop(client);
    drop(server);
    report(
        "a chain that is posted in part comes back",
        in_part(address),
    )?;
    report(
        "a device that refuses to stop is asked again",
        refused(address, false),
    )?;
    report(
        "what a device refuses to stop comes back",
        refused(address, true),
    )?;
    report(
        "a device without room for long entries is asked for shorter ones",
        narrow(address),
    )?;
    pr_info!("1..{number}\n");
    Ok(())
}
