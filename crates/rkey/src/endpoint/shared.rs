//! What the program's handles to an endpoint share with its operations in flight.

use super::inner::Inner;
use super::slot::{Outcome, Slot};
use crate::address::Address;
use crate::error::{Error, Result};
use rkey_rdm::error::{Error as Code, Failure};
use std::sync::Arc;
use std::time::Duration;

/// The program holds this part. Threads that connect hold only the inner part.
pub(super) struct Handle {
    pub(super) inner: Arc<Inner>,
    pub(super) address: Address,
}

impl Handle {
    pub(super) fn timeout(&self) -> Duration {
        self.inner.device().timeout()
    }

    pub(super) fn error_of(&self, failure: &Failure, peer: Option<Address>) -> Error {
        let report = self.inner.device().raw().denial(failure.vendor);
        report.map_or_else(
            || error_of(failure, peer),
            |report| Error::Denied(Box::new(report.denial)),
        )
    }

    /// Cancels a receive that no message has matched yet.
    pub(super) fn cancel(&self, slot: &Arc<Slot>) {
        if let Ok(driver) = self.inner.open() {
            let rdm = &mut driver.state.lock().rdm;
            rdm.receives_mut()
                .cancel(&driver.host, |receive| Arc::ptr_eq(&receive.0, slot));
        }
    }

    /// The result of an operation, if it has ended by now.
    pub(super) fn try_take(&self, slot: &Slot) -> Result<Option<Outcome>> {
        if !slot.is_ended() {
            self.inner.progress()?;
        }
        Ok(slot.take())
    }

    pub(super) fn is_ended(&self, slot: &Slot) -> bool {
        slot.is_ended() || self.inner.progress().is_err() || slot.is_ended()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Ok(driver) = self.inner.open() {
            driver.begin_close();
            driver.say_goodbye();
            driver.close();
        }
    }
}

/// The error of an operation that failed.
fn error_of(failure: &Failure, peer: Option<Address>) -> Error {
    let who = peer.map_or_else(String::new, |peer| format!("the endpoint at {peer} "));
    let gone = |how: &str| Error::PeerGone {
        how: format!("{who}{how}"),
    };
    match failure.error {
        Code::ConnectionReset | Code::NotConnected | Code::Shutdown => {
            gone("exited, or closed its endpoint")
        }
        Code::TimedOut => gone("did not answer in time"),
        Code::Canceled => Error::Object("the receive was canceled".into()),
        Code::NoMemory => Error::Object("no further region can be registered".into()),
        other => Error::Object(format!("the operation failed ({other:?})")),
    }
}
