//! A denied access as fields: what `rkey explain --json` prints.

use rkey_core::{Api, Attempt, Denial, Reason};
use rkey_engine::{DenialReport, Guesser, Side};
use rkey_link::NodeId;
use serde::{Deserialize, Serialize};

/// The version of these fields. The version changes when a field changes its meaning or is removed, not when one is
/// added.
pub const SCHEMA: u32 = 1;

/// From this value on, numbers are not exact in programs that read JSON numbers as floating point.
const INEXACT: u64 = 1 << 53;

/// A number that may be large: a JSON number if it is below 2^53, otherwise a string of decimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Count {
    /// Below 2^53.
    Small(u64),
    /// In decimal digits.
    Large(String),
}

impl From<u64> for Count {
    fn from(number: u64) -> Self {
        if number < INEXACT {
            Self::Small(number)
        } else {
            Self::Large(number.to_string())
        }
    }
}

/// Memory, in the addresses that requests use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryView {
    /// The first address, in hexadecimal (`0x...`).
    pub address: String,
    /// The length, in bytes.
    pub length: Count,
}

/// The other side of a denied access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// The peer's PID, as the peer reports it.
    pub pid: u32,
    /// The peer's device.
    pub device: String,
    /// The number of the peer's queue pair.
    pub queue_pair: u32,
    /// The address of the peer's host, if it is another host. There is no PID then.
    #[serde(default)]
    pub host: Option<std::net::IpAddr>,
}

/// A denied access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DenialView {
    /// The denial's number within the process, which is also in the log and in the vendor error of the completion.
    pub id: u32,
    /// The attempted access, as text.
    pub operation: String,
    /// "target": this process denied the peer's request; "initiator": the peer denied ours; "local": our own request named local
    /// memory that it is not allowed to use.
    pub side: String,
    /// The address (or offset) of the request, in hexadecimal (`0x...`).
    pub address: String,
    /// The length of the request, in bytes.
    pub length: Count,
    /// The key (or region) of the request.
    pub key: String,
    /// The reason, as a stable word: see `rkey explain --reasons --json`.
    pub reason: String,
    /// The rights that the operation needs; `None` for an invalidation.
    pub needed: Option<String>,
    /// The granted rights, if one is missing.
    pub granted: Option<String>,
    /// The memory, if the request's range is not inside it.
    pub memory: Option<MemoryView>,
    /// The process that owns the memory, as its device reports it.
    pub owner: u32,
    /// The other side; `None` if no peer was involved.
    pub peer: Option<PeerView>,
    /// The queue pair here.
    pub queue_pair: u32,
    /// The API in whose terms the sentence and the advice are written; empty if an earlier version of rkey reports.
    #[serde(default)]
    pub api: String,
    /// The id that the program gave the work request, in decimal digits, if this process posted it.
    pub work_id: Option<String>,
    /// The attempted access and the reason for the denial, in a sentence.
    pub sentence: String,
    /// What the user can do about the denial.
    pub advice: String,
}

impl DenialView {
    /// The view of a report of the device `node`.
    #[must_use]
    pub fn new(report: &DenialReport, node: NodeId) -> Self {
        let denial = &report.denial;
        let local = report.side == Side::Local;
        let owner = match report.side {
            Side::Initiator => report.peer.pid,
            Side::Target | Side::Local => node.pid,
        };
        let side = match report.side {
            Side::Target => "target",
            Side::Initiator => "initiator",
            Side::Local => "local",
        };
        Self {
            id: report.id,
            operation: denial.attempt.to_string(),
            side: side.to_owned(),
            address: format!("{:#x}", denial.addr),
            length: denial.len.into(),
            key: denial.key.to_string(),
            reason: denial.reason.name().to_owned(),
            needed: needed(denial),
            granted: granted(denial),
            memory: memory(denial),
            owner,
            peer: (!local).then(|| PeerView {
                pid: report.peer.pid,
                device: report.peer.to_string(),
                queue_pair: report.peer_qpn,
                host: report.host,
            }),
            queue_pair: report.qpn,
            api: denial.api.name().to_owned(),
            work_id: report.work_id.map(|id| id.to_string()),
            sentence: denial.to_string(),
            advice: denial.advice(),
        }
    }
}

/// Formats the denial for display: the sentence, the other side, and the advice.
impl std::fmt::Display for DenialView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            sentence,
            id,
            queue_pair,
            advice,
            ..
        } = self;
        let qp = match self.api == Api::Udapl.name() {
            true => "EP",
            false => "qp",
        };
        write!(f, "{id}: {sentence} (")?;
        if let Some(peer) = &self.peer {
            let by = if self.side == "target" {
                "requested"
            } else {
                "denied"
            };
            match peer.host {
                Some(host) => write!(f, "{by} by host {host}")?,
                None => write!(f, "{by} by pid {}", peer.pid)?,
            }
            write!(f, ", {qp} {:#x}; ", peer.queue_pair)?;
        }
        write!(f, "{qp} {queue_pair:#x} here). {advice}")
    }
}

fn needed(denial: &Denial) -> Option<String> {
    let rights = match denial.attempt {
        Attempt::Remote(operation) => operation.needs(),
        Attempt::Local(used) => used.needs(),
        Attempt::Invalidate { .. } | Attempt::Other(_) => return None,
    };
    Some(rights.to_string())
}

fn granted(denial: &Denial) -> Option<String> {
    match denial.reason {
        Reason::Right { granted, .. } | Reason::QueuePair { granted, .. } => {
            Some(granted.to_string())
        }
        _ => None,
    }
}

fn memory(denial: &Denial) -> Option<MemoryView> {
    match denial.reason {
        Reason::OutOfRange { memory, .. } | Reason::NotZeroBased { memory } => Some(MemoryView {
            address: format!("{:#x}", memory.start()),
            length: memory.len().into(),
        }),
        Reason::ZeroBased { len, .. } => Some(MemoryView {
            address: "0x0".to_owned(),
            length: len.into(),
        }),
        _ => None,
    }
}

/// A process that has tried keys that gave it no access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuesserView {
    /// The process's PID; `None` stands for all processes of the user without a PID in our PID namespace.
    pub pid: Option<u32>,
    /// The process's user ID.
    pub uid: u32,
    /// The number of keys that the process tried and that gave it no access.
    pub tried: Count,
    /// The number of those keys that were never issued.
    pub never_issued: Count,
    /// How many times the process's requests were paused.
    pub pauses: Count,
    /// The length of the pause after its last guess, in nanoseconds; 0 if there was none, or once its allowance is full again.
    pub pause_ns: Count,
    /// The other fields in one sentence.
    pub sentence: String,
}

impl From<&Guesser> for GuesserView {
    fn from(guesser: &Guesser) -> Self {
        Self {
            pid: Some(guesser.process.pid).filter(|pid| *pid > 0),
            uid: guesser.process.user,
            tried: guesser.tried.into(),
            never_issued: guesser.never_issued.into(),
            pauses: guesser.pauses.into(),
            pause_ns: guesser.pause.into(),
            sentence: guesser.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_of_a_denial_uses_the_terms_of_its_api() {
        let key = rkey_core::NamedKey::Remote(rkey_core::RKey::Device(rkey_core::Key(7)));
        let attempt = Attempt::Remote(rkey_core::Operation::Write);
        let node = NodeId::default();
        let view = |api| {
            let mut denial = *Denial::fault(attempt, key, 0x1000, 8, 0x1000);
            denial.api = api;
            let report = DenialReport {
                id: 3,
                side: Side::Target,
                echo: false,
                denial,
                qpn: 0x11,
                peer: node,
                peer_qpn: 0x22,
                host: None,
                work_id: None,
            };
            DenialView::new(&report, node)
        };
        let dat = view(Api::Udapl);
        let text = dat.to_string();
        assert!(text.contains("EP 0x22; EP 0x11 here"), "{text}");
        assert!(!text.contains("qp "), "{text}");
        assert_eq!(dat.api, "uDAPL");
        let verbs = view(Api::Verbs).to_string();
        assert!(verbs.contains("qp 0x22; qp 0x11 here"), "{verbs}");
        // An earlier version sends no name.
        let mut old = serde_json::to_value(&dat).unwrap();
        old.as_object_mut().unwrap().remove("api");
        let old: DenialView = serde_json::from_value(old).unwrap();
        assert_eq!(old.api, "");
    }

    #[test]
    fn numbers_that_would_be_inexact_in_json_are_strings() {
        let json = |number: u64| serde_json::to_string(&Count::from(number)).unwrap();
        assert_eq!(json((1 << 53) - 1), "9007199254740991");
        assert_eq!(json(1 << 53), "\"9007199254740992\"");
        assert_eq!(json(u64::MAX), "\"18446744073709551615\"");
        for number in [0, 1 << 53, u64::MAX] {
            let back: Count = serde_json::from_str(&json(number)).unwrap();
            assert_eq!(back, Count::from(number));
        }
    }
}
