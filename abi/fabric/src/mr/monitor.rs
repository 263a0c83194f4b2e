//! The variables of the registration cache, and the monitor that they choose for all caches of the process.

use parking_lot::{Condvar, Mutex};
use rkey_cache::{Chosen, Reader, Settings};
use rkey_device::threads;
use std::sync::LazyLock;
use std::time::Duration;

/// How long to wait for the monitor's thread. It does not start while its parent has a lock of the linker, in a constructor of a
/// shared object.
const START: Duration = Duration::from_millis(100);

/// The variables of fi_mr(3), which are read once.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
        let settings = Settings::read(|name| std::env::var(name).ok());
        for ignored in &settings.ignored {
            tracing::warn!("{ignored}");
        }
        settings
    });
    &SETTINGS
}

/// The monitor that `FI_MR_CACHE_MONITOR` names, which the first call starts. If the variable is unset, there is none, because the
/// device reads what is mapped at the time of a transfer.
pub(crate) fn chosen() -> &'static Chosen {
    static CHOSEN: LazyLock<Chosen> = LazyLock::new(|| {
        let settings = settings();
        let mut chosen = match settings.monitor {
            None => settings.choose_none(),
            Some(_) => settings.choose(),
        };
        if let Some(reader) = chosen.reader.take() {
            start(reader);
        }
        tracing::info!("registration cache: monitor {chosen}");
        if let (Some(wanted), Some(reason)) = (settings.monitor, &chosen.refused) {
            tracing::warn!(
                "FI_MR_CACHE_MONITOR={wanted} cannot be used, so registrations are not cached: {reason}"
            );
        }
        chosen
    });
    &CHOSEN
}

/// Starts the monitor's thread, and waits until it reads events. If memory were watched earlier, a `dlclose` could wait for the thread
/// while the thread waits for the linker.
fn start(reader: Reader) {
    // Not on the heap: once memory is watched, the thread must not free anything.
    static STARTED: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
    let body = move || {
        reader.run_after(|| {
            *STARTED.0.lock() = true;
            STARTED.1.notify_all();
        });
    };
    if let Err(error) = threads::spawn("rkey-memory", body) {
        // The reader was dropped, which stops the monitor, and then nothing is cached.
        tracing::warn!(
            "registrations are not cached, because the monitor's thread did not start: {error}"
        );
        return;
    }
    let mut started = STARTED.0.lock();
    let waited = STARTED
        .1
        .wait_while_for(&mut started, |started| !*started, START);
    if waited.timed_out() {
        tracing::warn!(
            "the memory monitor's thread has not started yet: until it has, a dlclose of cached memory can hang"
        );
    }
}
