//! What a connection manager reports to users: refusals and inspections. They are collected under the service's lock and
//! written to the log after it is released.

use rkey_cm::manager::{NotAccepted, Refused};
use rkey_cm::wire::RejectReason;
use rkey_cm::{ConnectionId, Info, State};
use std::collections::{BTreeMap, BTreeSet};

use super::inbox::pid_of;
use super::refusals::Why;
use super::view::{self, CmView, IDS, IdView, OtherSide};
use super::{Handler, Inner, inspect};
use crate::denials;
use crate::log_later;
use crate::peers::process;

/// Text for the log. Writing it may block, so the caller must hold no lock.
pub(super) struct LogText {
    notices: Vec<String>,
    refusals: Vec<String>,
}

impl LogText {
    pub(super) fn write(self) {
        for notice in self.notices {
            tracing::warn!("{notice}");
        }
        for refusal in self.refusals {
            denials::refused_connection(&refusal);
        }
    }
}

impl<H: Handler> Inner<H> {
    pub(super) fn take_log_text(&mut self) -> LogText {
        LogText {
            notices: self.carrier.notices.take(),
            refusals: self.refusals.take_new(),
        }
    }

    /// Records the connections that were refused.
    pub(super) fn note_refused(&mut self) {
        while let Some(refused) = self.manager.next_refused() {
            let is_own = refused.party == 0 && !refused.is_active;
            // Our own request, for which no other process listens: the active side reports it.
            if is_own && refused.why == NotAccepted::Here(RejectReason::SERVICE_ID) {
                continue;
            }
            let why = match Why::of(refused.why) {
                Why::NothingListens if refused.is_active => {
                    let owner = self.carrier.inaccessible_owner(refused.service);
                    owner.unwrap_or(Why::NothingListens)
                }
                why => why,
            };
            let pid = self.pid_of_refused(&refused);
            self.refusals.add_refused(&refused, pid, why);
        }
    }

    fn pid_of_refused(&self, refused: &Refused) -> Option<u32> {
        match (refused.is_active, refused.connection) {
            (true, Some(id)) => self.carrier.pid_of(id, refused.service, refused.remote_id),
            _ => pid_of(refused.party),
        }
    }

    /// The other side of a connection.
    fn other(&self, id: ConnectionId, info: &Info) -> OtherSide {
        let pid = match info.is_active {
            true => self.carrier.pid_of(id, info.service, info.remote_id),
            false => pid_of(info.party),
        };
        OtherSide {
            pid,
            is_missing: self.carrier.waits_for_listener(id, info.service),
        }
    }

    /// Answers the processes that have asked for an inspection.
    pub(super) fn answer_queries(&mut self) {
        if self.carrier.queries.is_empty() {
            return;
        }
        let view = self.view();
        for (socket, who) in std::mem::take(&mut self.carrier.queries) {
            let answered = match who.uid == view.uid {
                true => inspect::answer(&socket, &view),
                false => {
                    let refusals = Vec::new();
                    inspect::answer(
                        &socket,
                        &CmView {
                            refusals,
                            ..view.clone()
                        },
                    )
                }
            };
            if let Err(error) = answered {
                // This thread holds the service's lock.
                log_later::log(move || {
                    tracing::debug!(pid = ?who.pid, uid = who.uid, %error, "cannot answer a request to inspect the connection manager");
                });
            }
        }
    }

    fn view(&self) -> CmView {
        let all_listeners: BTreeMap<_, _> = self.manager.listeners().collect();
        let mut ids = Vec::new();
        let mut add = |count: &mut usize, view: &dyn Fn() -> IdView| {
            *count += 1;
            if ids.len() < IDS {
                ids.push(view());
            }
        };
        let (mut count, mut connections, mut listeners) = (0, BTreeSet::new(), BTreeSet::new());
        for own in self.handler.ids() {
            connections.extend(own.connection);
            listeners.extend(own.listener);
            let info = own
                .connection
                .and_then(|id| Some((id, self.manager.info(id)?)));
            let listener = own.listener.and_then(|id| all_listeners.get(&id));
            add(&mut count, &|| {
                let connection = info
                    .as_ref()
                    .map(|(id, info)| (info, self.other(*id, info)));
                view::of_id(&own, connection, listener)
            });
        }
        for (_, info) in all_listeners
            .iter()
            .filter(|(id, _)| !listeners.contains(id))
        {
            add(&mut count, &|| view::of_listener(info));
        }
        let mut ended = 0;
        for (id, state, _) in self.manager.connections() {
            let Some(info) = self.manager.info(id).filter(|_| !connections.contains(&id)) else {
                continue;
            };
            match state {
                State::ReqReceived | State::SidrReceived => {
                    add(&mut count, &|| {
                        view::of_request(&info, self.other(id, &info))
                    });
                }
                _ => ended += 1,
            }
        }
        CmView {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            command: process::own_command(),
            api: self.handler.api().to_owned(),
            ids,
            id_count: count,
            ended,
            refused: self.refusals.total(),
            refusals: self.refusals.list().map(Into::into).collect(),
        }
    }
}
