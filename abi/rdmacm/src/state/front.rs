//! The connection manager of this process. The first call that needs it starts it.

use crate::state::hub::{Entry, Hub, IdKey};
use parking_lot::Mutex;
use rkey_cm::manager::Error;
use rkey_device::Config;
use rkey_device::cm::{Parts, Service, Settings};
use rkey_kit::Errno;
use std::sync::OnceLock;

static SERVICE: OnceLock<Service<Hub>> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// Returns the connection manager, and starts it if necessary.
///
/// # Errors
/// The errors of starting it. `ENODEV`: this process was forked from the one that started it. `EIO`: its thread has panicked (a bug).
pub fn service() -> Result<&'static Service<Hub>, Errno> {
    let service = match SERVICE.get() {
        Some(service) => service,
        None => start()?,
    };
    if service.is_forked() {
        tracing::error!(
            "a forked child cannot use its parent's connection manager: fork before the first librdmacm call"
        );
        return Err(Errno::NODEV);
    }
    if service.has_failed() {
        return Err(Errno::IO);
    }
    Ok(service)
}

#[cold]
fn start() -> Result<&'static Service<Hub>, Errno> {
    let _one = STARTING.lock();
    if let Some(service) = SERVICE.get() {
        return Ok(service);
    }
    rkey_kit::log::start();
    let config = Config::from_env().map_err(|error| {
        tracing::error!("cannot start the connection manager: {error}");
        Errno::INVAL
    })?;
    let settings = Settings {
        share: config.share,
        reserved_files: config.reserved_files,
        wire: config.wire,
        ..Settings::default()
    };
    let started = Service::start(settings, Hub::default());
    let service = started.map_err(|error| {
        tracing::error!("cannot start the connection manager: {error}");
        Errno::from(&error)
    })?;
    Ok(SERVICE.get_or_init(|| service))
}

/// Runs a call under the connection manager's lock.
///
/// # Errors
/// The errors of [`service`] and of the call.
pub fn with<R>(call: impl FnOnce(&mut Parts<'_, Hub>) -> Result<R, Errno>) -> Result<R, Errno> {
    service()?.with(call)
}

/// Runs a call on an identifier under the connection manager's lock.
///
/// # Errors
/// The errors of [`service`] and of the call; `EINVAL` if the identifier has ended.
pub fn with_entry<R>(
    key: IdKey,
    call: impl FnOnce(&mut Entry) -> Result<R, Errno>,
) -> Result<R, Errno> {
    with(|parts| call(entry(parts.handler, key)?))
}

/// Waits until the program has acknowledged all events of an identifier that it has fetched.
///
/// # Errors
/// The errors of [`service`].
pub fn wait_for_acks(key: IdKey) -> Result<(), Errno> {
    wait_until(key, |entry| entry.fetched == entry.acknowledged)
}

/// Waits until a condition holds for an identifier, or the identifier has ended.
///
/// # Errors
/// The errors of [`service`].
pub fn wait_until(key: IdKey, holds: impl Fn(&mut Entry) -> bool) -> Result<(), Errno> {
    let is_met = |hub: &mut Hub| hub.entries.get_mut(&key).is_none_or(&holds);
    match service()?.wait_until(is_met) {
        true => Ok(()),
        false => Err(Errno::IO),
    }
}

/// Looks up an identifier.
///
/// # Errors
/// `EINVAL`: it has ended.
pub fn entry(hub: &mut Hub, key: IdKey) -> Result<&mut Entry, Errno> {
    hub.entries.get_mut(&key).ok_or(Errno::INVAL)
}

/// Maps an error that the connection manager returned for `call` to an error number, and logs it.
pub fn errno(call: &'static str) -> impl Fn(Error) -> Errno {
    move |error| {
        tracing::info!("the connection manager refused {call}: {error}");
        match error {
            Error::InUse => Errno::from_raw(libc::EADDRINUSE),
            Error::Full(_) => Errno::NOMEM,
            Error::Unknown
            | Error::WrongState(_)
            | Error::WrongKind
            | Error::NoBacklog
            | Error::Addresses(..)
            | Error::QueuePair(_) => Errno::INVAL,
        }
    }
}
