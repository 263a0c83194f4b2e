//! The device that the front ends of a process share.
//!
//! A program may use several APIs. If each of them opened its own device, a key of one would mean nothing to the others. So all
//! APIs share one device, which each API opens once. Further openings of the same API get their own devices: programs open
//! several contexts of one API so that they do not contend with each other.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::Config;
use crate::device::{Device, Handle};
use crate::error::DeviceError;

/// The device, while it is open.
static DEVICE: Mutex<Weak<Handle>> = Mutex::new(Weak::new());

/// How long to wait while another thread opens the device. If the process forks in the meantime, nothing unlocks [`DEVICE`] in the child.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

impl Device {
    /// Opens the device that the front ends of this process share: the same one for every API. The domains of the APIs stay separate
    /// ([`Config::cross_api`]).
    ///
    /// If the API has the shared device open already, or the configurations differ in a value that concerns the whole device, this
    /// opens another device, as [`Device::open`] does.
    ///
    /// # Errors
    /// Same as [`Device::open`].
    pub fn open_shared(config: Config) -> Result<Self, DeviceError> {
        let Some(mut device) = DEVICE.try_lock_for(OPEN_TIMEOUT) else {
            return Self::open(config);
        };
        match device.upgrade().filter(|handle| handle.is_usable()) {
            Some(handle) if handle.suits(&config) => Self::join(&handle, config),
            Some(_) => Self::open(config),
            None => {
                let opened = Self::open(config)?;
                *device = Arc::downgrade(opened.handle());
                Ok(opened)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_core::Api;

    fn open(api: Api, change: impl FnOnce(&mut Config)) -> Device {
        let mut config = Config {
            api,
            ..Config::default()
        };
        change(&mut config);
        Device::open_shared(config).unwrap()
    }

    /// A single test, because several would share the device.
    #[test]
    fn the_apis_of_a_process_share_a_device() {
        let verbs = open(Api::Verbs, |_| ());
        let fabric = open(Api::Libfabric, |config| config.timeout = 19);
        assert!(verbs.is(&fabric));
        assert_eq!((verbs.config().timeout, fabric.config().timeout), (15, 19));
        // Each API has its own events and domains.
        let [one, two] = [&verbs, &fabric].map(|device| device.create_domain().unwrap());
        assert_eq!((one.api(), two.api()), (Api::Verbs, Api::Libfabric));
        let cqs = [&verbs, &fabric].map(|device| device.create_cq(1, None).unwrap());
        for cq in &cqs {
            verbs
                .shared()
                .events
                .push(crate::AsyncEvent::CqOverrun(cq.id()));
        }
        for (device, cq) in [&verbs, &fabric].into_iter().zip(&cqs) {
            let next = || device.next_event(Some(Duration::ZERO)).unwrap();
            assert_eq!(next(), Some(crate::AsyncEvent::CqOverrun(cq.id())));
            assert_eq!(next(), None);
        }
        // A second opening of the same API, or one with a different limit for the whole device.
        assert!(!verbs.is(&open(Api::Verbs, |_| ())));
        assert!(!verbs.is(&open(Api::Udapl, |config| config.max_qps = 7)));
        // The device ends with its last opening; until then it can be joined again.
        drop((verbs, cqs));
        let again = open(Api::Verbs, |_| ());
        assert!(again.is(&fabric));
        let node = again.node();
        drop((again, fabric));
        assert_ne!(open(Api::Verbs, |_| ()).node(), node);
    }
}
