//! What `rkey ls` shows of the identifiers.

use crate::state::hub::{Entry, Hub, IdKey, Phase};
use crate::sys::*;
use ibverbs::sys::{QPT_RC, QPT_UC, QPT_UD};
use rkey_device::cm::OwnId;
use std::collections::BTreeMap;

/// All identifiers.
pub fn ids(hub: &Hub) -> Vec<OwnId> {
    let mut events: BTreeMap<IdKey, usize> = BTreeMap::new();
    for key in hub.waiting_events() {
        *events.entry(key).or_default() += 1;
    }
    let waiting = |key| events.get(key).copied().unwrap_or(0);
    let all = hub.entries.iter();
    all.map(|(key, entry)| view(entry, waiting(key))).collect()
}

fn view(entry: &Entry, events: usize) -> OwnId {
    OwnId {
        name: format!("{:#x}", entry.handle),
        qp_type: match entry.qp_type {
            QPT_RC => "RC",
            QPT_UC => "UC",
            QPT_UD => "UD",
            _ => "XRC",
        },
        space: match entry.space {
            PS_TCP => "TCP",
            PS_IB => "IB",
            PS_IPOIB => "IPOIB",
            _ => "UDP",
        },
        state: match entry.phase {
            Phase::Idle => "new",
            Phase::Bound => "bound",
            Phase::AddressResolved => "address resolved",
            Phase::RouteResolved => "route resolved",
            Phase::Listening => "listening",
            Phase::Connecting => "connecting",
            Phase::Requested => "requested",
            Phase::Connected => "connected",
            Phase::Ended => "ended",
        },
        local: entry.local,
        peer: entry.peer,
        connection: entry.connection,
        listener: entry.listener,
        events,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::event_fd::EventFd;
    use crate::state::hub::PendingEvent;
    use std::sync::Arc;

    #[test]
    fn identifiers_show_their_type_state_and_pending_events() {
        let mut hub = Hub::default();
        let channel = hub.add_channel(Arc::new(EventFd::new().unwrap()));
        let key = hub.add(Entry::new(channel, PS_UDP, QPT_UD));
        let other = hub.add(Entry::new(channel, PS_TCP, QPT_RC));
        hub.push(key, PendingEvent::RouteResolved);
        hub.push(key, PendingEvent::RouteResolved);
        if let Some(entry) = hub.entries.get_mut(&other) {
            entry.handle = 0x1000;
            entry.phase = Phase::RouteResolved;
        }
        let [one, two] = <[OwnId; 2]>::try_from(ids(&hub)).unwrap();
        assert_eq!((one.qp_type, one.space, one.events), ("UD", "UDP", 2));
        assert_eq!((two.name.as_str(), two.events), ("0x1000", 0));
        assert_eq!(two.state, "route resolved");
    }
}
