//! The end of an endpoint.

use super::{Driver, Front};
use rkey_device::time;
use rkey_rdm::draining::STUCK;

impl<F: Front> Driver<F> {
    /// Prevents new connections from now on, in either direction.
    pub fn begin_close(&self) {
        self.state.lock().closing = true;
        drop(self.serving.lock().take());
    }

    /// Notifies the peers that the endpoint is closing, and waits briefly until the notice and earlier posts have arrived.
    pub fn say_goodbye(&self) {
        {
            let mut state = self.state.lock();
            self.advance(&mut state);
            state.rdm.say_goodbye(&self.host);
        }
        self.linger();
    }

    /// Ends all connections and operations without reporting to the program. When this returns, no peer accesses the
    /// program's memory.
    pub fn close(&self) {
        let remains = self.state.lock().rdm.close(&self.host);
        // After this loop no peer accesses the program's memory, not even one that is stopped now.
        let deadline = time::now() + STUCK;
        for qp in &remains.qps {
            qp.quiesce(deadline);
        }
        remains.withdraw(&self.host);
    }
}
