//! The queue pairs of a device by their numbers.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rkey_engine::QpId;

#[derive(Debug, Default)]
pub(crate) struct QpTable(Mutex<BTreeMap<u32, Entry>>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: QpId,
    fails_with_peer: bool,
    tells_denials: bool,
}

impl QpTable {
    pub(crate) fn insert(&self, qpn: u32, id: QpId, fails_with_peer: bool, tells_denials: bool) {
        let entry = Entry {
            id,
            fails_with_peer,
            tells_denials,
        };
        self.0.lock().insert(qpn, entry);
    }

    pub(crate) fn remove(&self, qpn: u32) {
        self.0.lock().remove(&qpn);
    }

    /// The queue pair with this number.
    pub(crate) fn find(&self, qpn: u32) -> Option<QpId> {
        self.0.lock().get(&qpn).map(|entry| entry.id)
    }

    /// Whether the front end of this queue pair logs refusals of its requests.
    pub(crate) fn tells_denials(&self, qpn: u32) -> bool {
        let table = self.0.lock();
        table.get(&qpn).is_some_and(|entry| entry.tells_denials)
    }

    /// Whether the queue pair goes to the error state when its peer ends. `false` if another queue pair has the number
    /// by now.
    pub(crate) fn fails_with_peer(&self, qpn: u32, id: QpId) -> bool {
        let table = self.0.lock();
        table
            .get(&qpn)
            .is_some_and(|entry| entry.id == id && entry.fails_with_peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_given_out_again_means_the_new_queue_pair() {
        let table = QpTable::default();
        let (old, new) = (QpId::from((1, 1)), QpId::from((1, 2)));
        table.insert(256, old, true, true);
        assert!(table.fails_with_peer(256, old) && !table.fails_with_peer(257, old));
        assert!(table.tells_denials(256) && !table.tells_denials(257));
        table.remove(256);
        assert_eq!(table.find(256), None);
        table.insert(256, new, false, false);
        assert_eq!(table.find(256), Some(new));
        assert!(!table.fails_with_peer(256, old) && !table.fails_with_peer(256, new));
    }
}
