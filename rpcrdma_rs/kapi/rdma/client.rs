// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Device removal.
//!
//! ib_core notifies its clients before it removes a device, and waits until they have released
//! their resources. An object with resources on a device holds a [`RemovalGuard`] for it:
//!
//! ```text
//!   RemovalGuard::new ──► guarding ─device removal─► notified (Removal::removing) ──► dropped
//!                            └──────────────────────────────────────────────────────────┘
//! ```
//!
//! The removal continues when the last guard of the device is dropped.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    ffi::{
        c_int,
        c_void, //
    },
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    new_mutex,
    prelude::*,
    str::CStr,
    sync::{
        Arc,
        ArcBorrow,
        Completion,
        Mutex,
        SetOnce, //
    },
    types::Opaque, //
};

use super::{
    device::Device,
    owner_name, //
};
use crate::kapi::{
    bindings,
    ext::{
        atomic::{
            Atomic,
            Full, //
        },
        noio::NoIo,
        retry::retry_while_short, //
    }, //
};

/// Called when a device is added or removed, with its name. Process context.
pub(crate) trait DeviceEvents: Sync {
    /// A device was added.
    fn added(&self, device: &CStr);

    /// A device is being removed.
    fn removing(&self, device: &CStr);

    /// The removal waits for guards to be dropped.
    fn waiting(&self, device: &CStr);

    /// No guard holds the device any more.
    fn removed(&self, device: &CStr);
}

/// The callback that the registration was created with.
static EVENTS: SetOnce<&'static dyn DeviceEvents> = SetOnce::new();

/// Calls the callback for a device.
fn notify(device: &Device, what: impl FnOnce(&dyn DeviceEvents, &CStr)) {
    if let Some(events) = EVENTS.as_ref() {
        what(*events, &device.name());
    }
}

/// Releases resources on a device when that device is removed.
pub(crate) trait Removal: Send + Sync + 'static {
    /// Called when the device is being removed. The guard must be dropped soon; this function may
    /// drop it. May sleep.
    fn removing(&self);
}

/// The guards of one device.
struct Guards {
    /// Set once the device is being removed; never cleared.
    removing: bool,
    next_key: u64,
    // A server may have thousands of connections.
    list: KVVec<(u64, Arc<dyn Removal>)>,
}

/// One device, from the time ib_core announces it.
#[pin_data]
struct DeviceData {
    #[pin]
    guards: Mutex<Guards>,
    /// Completed when the device is being removed and the last guard was dropped.
    #[pin]
    empty: Completion,
}

impl DeviceData {
    fn new() -> Result<Arc<Self>> {
        let data = pin_init!(DeviceData {
            guards <- new_mutex!(
                Guards {
                    removing: false,
                    next_key: 0,
                    list: KVVec::new(),
                },
                "Guards"
            ),
            empty <- Completion::new(),
        });
        Arc::pin_init(data, GFP_KERNEL)
    }
}

/// The module's `struct ib_client`.
struct Client(Opaque<bindings::ib_client>);

// SAFETY: ib_core synchronises the use of its clients.
unsafe impl Sync for Client {}

static CLIENT: Client = Client(Opaque::new(bindings::ib_client {
    name: owner_name(),
    add: Some(add_device),
    remove: Some(remove_device),
    ..pin_init::zeroed()
}));

kernel::sync::global_lock! {
    // Whether the client is registered. Client data is removed from a device only with this lock
    // held.
    //
    // SAFETY: `Registration::new` initialises it before ib_core calls a function of this file, and
    // before it sets `EVENTS`, without which `RemovalGuard::new` does not use it.
    unsafe(uninit) static DEVICES: Mutex<bool> = false;
}

/// Whether a registration exists or existed.
static MADE: Atomic<bool> = Atomic::new(false);

/// The registration with ib_core. One exists while the module is loaded.
#[must_use]
pub(crate) struct Registration(());

impl Registration {
    /// Registers with ib_core, and passes events to `events`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if this was called before; `ENOMEM`.
    pub(crate) fn new(events: &'static dyn DeviceEvents) -> Result<Self> {
        if MADE.xchg(true, Full) {
            return Err(EBUSY);
        }
        // SAFETY: `MADE` ensures that this runs once, before any use of the lock.
        unsafe { DEVICES.init() };
        EVENTS.populate(events);
        // SAFETY: The client is static, and this is the only registration.
        to_result(unsafe { bindings::ib_register_client(CLIENT.0.get()) })?;
        *DEVICES.lock() = true;
        Ok(Registration(()))
    }
}

impl Drop for Registration {
    /// Waits until no guard is left. Sleeps.
    fn drop(&mut self) {
        *DEVICES.lock() = false;
        // SAFETY: `new` registered the client, and only this drop unregisters it.
        unsafe { bindings::ib_unregister_client(CLIENT.0.get()) };
    }
}

/// Delays the removal of a device until it is dropped. Dropping it may sleep.
///
/// # Examples
///
/// ```ignore
/// // `connection` is an `Arc` of a type that implements `Removal`.
/// let guard = RemovalGuard::new(device, connection.clone())?;
/// // The device stays until the guard is dropped.
/// drop(guard);
/// ```
#[must_use]
pub(crate) struct RemovalGuard {
    key: u64,
    device: Arc<DeviceData>,
}

impl RemovalGuard {
    /// Creates a guard for `device`, whose removal calls `removal`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is already being removed, or there is no [`Registration`]; `ENOMEM`.
    pub(crate) fn new(device: &Device, removal: Arc<dyn Removal>) -> Result<Self> {
        EVENTS.as_ref().ok_or(ENODEV)?;
        let devices = DEVICES.lock();
        if !*devices {
            return Err(ENODEV);
        }
        // SAFETY: The device is allocated, and the client stays registered while the lock is held.
        // If the device was removed, the entry is null: `remove_device` clears it.
        let data =
            unsafe { bindings::rpcrdma_shim_ib_get_client_data(device.as_raw(), CLIENT.0.get()) };
        let data = NonNull::new(data).ok_or(ENODEV)?;
        // SAFETY: `add_device` set it to a pointer from `Arc::into_raw`. `remove_device` needs
        // the lock, which is held here, before it drops that `Arc`.
        let data = unsafe { ArcBorrow::from_raw(data.as_ptr().cast::<DeviceData>()) };
        let data: Arc<DeviceData> = data.into();
        drop(devices);

        // The connect worker of a mount takes this lock, and reclaim may wait for that mount.
        let _no_io = NoIo::begin();
        let mut guards = data.guards.lock();
        if guards.removing {
            return Err(ENODEV);
        }
        let key = guards.next_key;
        guards.list.push((key, removal), GFP_KERNEL)?;
        guards.next_key += 1;
        drop(guards);
        Ok(RemovalGuard { key, device: data })
    }
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        let mut guards = self.device.guards.lock();
        let place = guards.list.iter().position(|(key, _)| *key == self.key);
        let removed = place.and_then(|place| guards.list.remove(place).ok());
        let last = guards.removing && guards.list.is_empty();
        drop(guards);
        // This may be the last reference, which must not be dropped under the lock.
        drop(removed);
        if last {
            self.device.empty.complete_all();
        }
    }
}

/// Called by ib_core for each existing device, and for each device that is added later.
///
/// Waits for memory, because ib_core ignores an error, and the device would be unusable until the
/// module is reloaded.
///
/// # Safety
///
/// `device` must be valid.
unsafe extern "C" fn add_device(device: *mut bindings::ib_device) -> c_int {
    let data = loop {
        match retry_while_short(|| false, DeviceData::new) {
            Ok(data) => break data,
            // Memory is still short.
            Err(ENOMEM) => {}
            Err(e) => return e.to_errno(),
        }
    };
    let data = Arc::into_raw(data).cast_mut().cast::<c_void>();
    // SAFETY: The device is valid by this function's contract, and `CLIENT` is the client that
    // ib_core adds.
    unsafe { bindings::ib_set_client_data(device, CLIENT.0.get(), data) };
    // SAFETY: The device is valid by this function's contract.
    notify(unsafe { Device::from_raw(device) }, |events, name| {
        events.added(name)
    });
    0
}

/// Called by ib_core when a device is removed, or when the client unregisters.
///
/// # Safety
///
/// `device` must be valid until this function returns. `data` must be null, or what `add_device`
/// set.
unsafe extern "C" fn remove_device(device: *mut bindings::ib_device, data: *mut c_void) {
    if data.is_null() {
        return;
    }
    let devices = DEVICES.lock();
    // SAFETY: The device is valid until we return.
    unsafe { bindings::ib_set_client_data(device, CLIENT.0.get(), core::ptr::null_mut()) };
    drop(devices);
    // SAFETY: `data` was set by `add_device`, by this function's contract. It came from
    // `Arc::into_raw`, and nobody else can find it any more.
    let data = unsafe { Arc::<DeviceData>::from_raw(data.cast_const().cast()) };
    data.guards.lock().removing = true;
    // SAFETY: The device is valid until we return.
    let device = unsafe { Device::from_raw(device) };
    notify(device, |events, name| events.removing(name));
    // Notify the guards one by one and without the lock, because `removing` may drop its guard,
    // which takes the lock. No guard is added any more, and the keys in the list increase.
    let mut notified = None;
    loop {
        let guards = data.guards.lock();
        let next = guards
            .list
            .iter()
            .find(|(key, _)| notified.is_none_or(|notified| *key > notified))
            .map(|(key, removal)| (*key, removal.clone()));
        let empty = guards.list.is_empty();
        drop(guards);
        match next {
            Some((key, removal)) => {
                notified = Some(key);
                removal.removing();
            }
            None if empty => return notify(device, |events, name| events.removed(name)),
            None => break,
        }
    }
    notify(device, |events, name| events.waiting(name));
    data.empty.wait_for_completion();
    notify(device, |events, name| events.removed(name));
}
