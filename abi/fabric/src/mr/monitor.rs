//! The variables of the registration cache, and the monitor that they choose for all caches of the process.

use rkey_cache::{Chosen, Settings};
use rkey_device::threads;
use std::sync::LazyLock;

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
            // Dropping the reader stops the monitor, and then nothing is cached.
            if let Err(error) = threads::spawn("rkey-memory", move || reader.run()) {
                tracing::warn!(
                    "registrations are not cached, because the monitor's thread did not start: {error}"
                );
            }
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
