//! SRQs (shared receive queues).

use crate::handles::fail::Result;
use crate::objects::evd::Evd;
use crate::objects::pz::Pz;
use parking_lot::Mutex;
use rkey_device::Srq as Queue;
use rkey_kit::object::Users;
use std::sync::Arc;

/// A shared receive queue.
pub struct Srq {
    /// The PZ of the SRQ.
    pub pz: Arc<Pz>,
    /// The handle of the SRQ.
    pub handle: usize,
    /// The device's queue.
    pub queue: Queue,
    pub(crate) max_recv_iov: u32,
    /// The EPs and EVDs where its receives may complete.
    receivers: Mutex<Receivers>,
    /// EPs that take receives from the SRQ.
    pub users: Users,
}

#[derive(Default)]
struct Receivers {
    /// The capacity of the SRQ, in receives.
    depth: u32,
    /// The EVDs where its receives may complete, each with its number of EPs. `None`: EPs whose program wants no
    /// events.
    evds: Vec<(Option<Arc<Evd>>, u32)>,
}

impl Receivers {
    fn place(&self, evd: Option<&Arc<Evd>>) -> Option<usize> {
        let evd = evd.map(Arc::as_ptr);
        let mut known = self.evds.iter();
        known.position(|(other, _)| other.as_ref().map(Arc::as_ptr) == evd)
    }
}

crate::kind!(
    Srq,
    HANDLE_TYPE_SRQ,
    INVALID_HANDLE_SRQ,
    RESOURCE_SRQ,
    1 << 16
);

impl Srq {
    /// An SRQ for up to `depth` receives of up to `max_recv_iov` segments.
    #[must_use]
    pub fn new(pz: &Arc<Pz>, handle: usize, queue: Queue, depth: u32, max_recv_iov: u32) -> Self {
        let receivers = Receivers {
            depth,
            evds: Vec::new(),
        };
        Self {
            pz: Arc::clone(pz),
            handle,
            queue,
            max_recv_iov,
            receivers: Mutex::new(receivers),
            users: Users::default(),
        }
    }

    /// Closes the SRQ.
    pub fn close(&self) {
        self.pz.ia().remove_srq(self.queue.id());
        self.pz.users.remove();
    }

    /// Makes room in an EVD for the completions of its receives, before an EP takes them.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn attach(&self, evd: Option<&Arc<Evd>>) -> Result {
        let mut receivers = self.receivers.lock();
        match receivers
            .place(evd)
            .and_then(|at| receivers.evds.get_mut(at))
        {
            Some((_, eps)) => *eps += 1,
            None => {
                let ia = self.pz.ia();
                ia.expect(evd.map(|evd| &**evd), receivers.depth)?;
                receivers.evds.push((evd.cloned(), 1));
            }
        }
        Ok(())
    }

    /// Undoes [`Srq::attach`].
    pub fn detach(&self, evd: Option<&Arc<Evd>>) {
        let mut receivers = self.receivers.lock();
        let Some(place) = receivers.place(evd) else {
            return;
        };
        if let Some((_, eps)) = receivers.evds.get_mut(place) {
            *eps -= 1;
            if *eps == 0 {
                receivers.evds.swap_remove(place);
                let ia = self.pz.ia();
                ia.expect_less(evd.map(|evd| &**evd), receivers.depth);
            }
        }
    }

    /// Takes completions out of the completion queues of the SRQ's EVDs if those queues are filling up.
    pub(crate) fn relieve(&self) {
        let ia = self.pz.ia();
        let mut crowded = Vec::new();
        for (evd, _) in &self.receivers.lock().evds {
            if ia.is_crowded(evd.as_deref()) {
                crowded.push(evd.clone());
            }
        }
        for evd in crowded {
            ia.collect(evd.as_deref());
        }
    }

    /// Changes how many receives the SRQ can hold, and makes room for their completions.
    pub(crate) fn resize(&self, depth: u32) -> Result {
        let ia = self.pz.ia();
        let mut receivers = self.receivers.lock();
        let more = depth.saturating_sub(receivers.depth);
        let mut failed = Ok(());
        let mut grown = 0;
        for (evd, _) in &receivers.evds {
            failed = ia.expect(evd.as_deref(), more);
            if failed.is_err() {
                break;
            }
            grown += 1;
        }
        let result = failed.and_then(|()| Ok(self.queue.modify(None, Some(depth))?));
        let (less, from) = match result {
            Ok(()) => (receivers.depth.saturating_sub(depth), receivers.evds.len()),
            Err(_) => (more, grown),
        };
        for (evd, _) in receivers.evds.iter().take(from) {
            ia.expect_less(evd.as_deref(), less);
        }
        if result.is_ok() {
            receivers.depth = depth;
        }
        result
    }

    /// How many receives the SRQ can hold, its low watermark, and how many it holds.
    pub(crate) fn state(&self) -> Result<(u32, u32, u32)> {
        Ok(self.queue.query()?)
    }
}
