//! The queue pairs of a device by their numbers.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rkey_engine::{QpId, QpType};

#[derive(Debug, Default)]
pub(crate) struct QpTable(Mutex<BTreeMap<u32, QpEntry>>);

/// A queue pair, and what its front end wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpEntry {
    pub(crate) id: QpId,
    pub(crate) qp_type: QpType,
    /// Whether the queue pair enters the error state when its peer ends.
    pub(crate) fails_with_peer: bool,
    /// Whether the front end logs refusals of its requests.
    pub(crate) logs_denials: bool,
    /// Whether the front end has an event for the end of a peer.
    pub(crate) reports_end: bool,
}

impl QpTable {
    pub(crate) fn insert(&self, qpn: u32, entry: QpEntry) {
        self.0.lock().insert(qpn, entry);
    }

    pub(crate) fn remove(&self, qpn: u32) {
        self.0.lock().remove(&qpn);
    }

    /// The queue pair with this number.
    pub(crate) fn find(&self, qpn: u32) -> Option<QpId> {
        self.0.lock().get(&qpn).map(|entry| entry.id)
    }

    /// The type of the queue pair with this number.
    pub(crate) fn type_of(&self, qpn: u32) -> Option<QpType> {
        self.0.lock().get(&qpn).map(|entry| entry.qp_type)
    }

    /// Whether the front end of this queue pair logs refusals of its requests.
    pub(crate) fn logs_denials(&self, qpn: u32) -> bool {
        let table = self.0.lock();
        table.get(&qpn).is_some_and(|entry| entry.logs_denials)
    }

    /// Whether the queue pair goes to the error state when its peer ends. `false` if another queue pair has the number
    /// by now.
    pub(crate) fn fails_with_peer(&self, qpn: u32, id: QpId) -> bool {
        let table = self.0.lock();
        table
            .get(&qpn)
            .is_some_and(|entry| entry.id == id && entry.fails_with_peer)
    }

    /// Whether the program gets an event when the peer of the queue pair ends.
    pub(crate) fn reports_end(&self, qpn: u32) -> bool {
        let table = self.0.lock();
        table.get(&qpn).is_none_or(|entry| entry.reports_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_number_refers_to_the_new_queue_pair() {
        let table = QpTable::default();
        let (old, new) = (QpId::from((1, 1)), QpId::from((1, 2)));
        let entry = |id, on| QpEntry {
            id,
            qp_type: QpType::Rc,
            fails_with_peer: on,
            logs_denials: on,
            reports_end: on,
        };
        table.insert(256, entry(old, true));
        assert!(table.reports_end(256));
        assert!(table.fails_with_peer(256, old) && !table.fails_with_peer(257, old));
        assert!(table.logs_denials(256) && !table.logs_denials(257));
        table.remove(256);
        assert_eq!(table.find(256), None);
        table.insert(256, entry(new, false));
        assert!(!table.reports_end(256));
        assert_eq!(table.find(256), Some(new));
        assert!(!table.fails_with_peer(256, old) && !table.fails_with_peer(256, new));
    }
}
