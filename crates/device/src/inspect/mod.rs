//! Inspections: descriptions of this process's devices and of others, for display.
//!
//! A device answers an inspection from its engine thread, so it also works while its program sleeps or computes. Every
//! process that may connect may inspect, even one of another user if devices are shared (`RKEY_SHARE=all`). Other users see no
//! denials and, without `RKEY_EXPLAIN=all`, no regions and windows.

pub mod cache_view;
pub mod copy_paths;
pub mod denial_view;
pub mod denials;
pub mod describe;
pub mod description;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rkey_core::{Api, Snapshot};
pub use rkey_engine::WireDrops;
pub use rkey_engine::inspect::NetworkSnapshot;
use rkey_engine::inspect::{CqSnapshot, LinkSnapshot, QpSnapshot, SrqSnapshot};
use rkey_link::peer::{Control, Credentials};
use rkey_link::{AnyLink, Link, LinkRole, NodeId};
use serde::{Deserialize, Serialize};

use crate::config::{Config, Explain};
use crate::device::{Device, link_config};
use crate::error::DeviceError;
use crate::inspect::cache_view::CacheView;
use crate::inspect::denial_view::{DenialView, GuesserView};
use crate::inspect::describe::{EndpointView, ObjectView};
use crate::objects::event_queue::wait_readable;
use crate::peers::handshake::{HandshakeError, LocalNode, OtherConnection, PROTOCOL_VERSION, Step};
use crate::peers::names::{self, Scope};
use crate::peers::process::{self, Departed};
use crate::shared::Shared;
use crate::wire::WireDescription;

/// A client's request for an inspection.
pub(crate) const REQUEST: &[u8] = b"inspect";
/// The answer, sent with the descriptor of a file that contains the inspection.
const ANSWER: &[u8] = b"inspection";
/// The maximum length of an inspection, in bytes.
const MAX_LEN: u64 = 64 << 20;
/// The maximum number of regions, and of windows, in an inspection.
const MAX_LISTED: usize = 10_000;
/// How long all devices together may take to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A device at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Inspection {
    /// The device.
    pub node: NodeId,
    /// The process, as it sees itself.
    pub pid: u32,
    /// The process's user ID.
    pub uid: u32,
    /// The process's command line, shortened.
    pub command: String,
    /// The API in whose terms the device's objects are shown: that of its domains, or [`Api::Native`] if they have several.
    #[serde(default)]
    pub api: Api,
    /// The device's blocks of queue pair numbers.
    pub blocks: Vec<u16>,
    /// What drives the device's engine at the moment: "thread", "program", or "asleep" if the engine is idle.
    pub driver: String,
    /// Domains, regions and windows; at most the first 10,000 regions and windows each.
    pub protection: Snapshot,
    /// The number of regions.
    pub regions: usize,
    /// The number of windows.
    pub windows: usize,
    /// Queue pairs, by number.
    pub qps: Vec<QpView>,
    /// Shared receive queues.
    #[serde(default)]
    pub srqs: Vec<SrqView>,
    /// Completion queues.
    pub cqs: Vec<CqView>,
    /// Links to other devices and to itself.
    pub links: Vec<LinkView>,
    /// Processes that exited while queue pairs still named their devices as peers.
    #[serde(default)]
    pub departed: Vec<Departed>,
    /// Counters that are bound to regions.
    pub counters: Vec<CounterView>,
    /// Endpoints of front ends; at most the first 256.
    #[serde(default)]
    pub endpoints: Vec<EndpointView>,
    /// The number of endpoints.
    #[serde(default)]
    pub endpoint_count: usize,
    /// Other objects of front ends; at most the first 1,024.
    #[serde(default)]
    pub objects: Vec<ObjectView>,
    /// The number of other objects.
    #[serde(default)]
    pub object_count: usize,
    /// Registration caches of front ends; at most the first 256.
    #[serde(default)]
    pub caches: Vec<CacheView>,
    /// The sockets that reach other hosts, and what they have dropped; `None` without a wire.
    #[serde(default)]
    pub wire: Option<WireDescription>,
    /// Packets from other hosts that the engine has dropped.
    #[serde(default)]
    pub wire_drops: WireDrops,
    /// The number of accesses that were refused since the device was opened.
    pub denied: u64,
    /// The most recent refused accesses, oldest first: what was denied, why, and what to do about it. Denials name keys, which
    /// may be valid for other accesses, so other users do not see them.
    pub denials: Vec<DenialView>,
    /// Processes that have tried keys that gave them no access, those with the most tries first. Other users do not see them.
    #[serde(default)]
    pub guessers: Vec<GuesserView>,
}

/// A queue pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpView {
    /// The queue pair number.
    pub qpn: u32,
    /// The transport service.
    pub qp_type: String,
    /// The state of the queue pair.
    pub state: String,
    /// The number of the protection domain.
    pub domain: u32,
    /// The number of the connected queue pair.
    pub peer_qpn: Option<u32>,
    /// The device of the connected queue pair, once it is known.
    pub peer: Option<NodeId>,
    /// The address of the connected queue pair, if it is on another host.
    #[serde(default)]
    pub host: Option<std::net::IpAddr>,
    /// The number of posted sends that are not complete.
    pub sends: u32,
    /// The number of those sends that have been started.
    pub started: u32,
    /// The number of posted receives that are not complete.
    pub receives: u32,
    /// Why nothing is sent although sends are posted: "Link", "Room", "Delay", "Rewind" or "Order".
    pub waits_for: Option<String>,
    /// What has happened to its packets, if its peer is on another host and a packet has been sent or received.
    #[serde(default)]
    pub network: Option<NetworkSnapshot>,
}

/// A shared receive queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SrqView {
    /// The queue's number within the device.
    pub number: u32,
    /// The number of the protection domain.
    pub domain: u32,
    /// The capacity of the queue, in receives.
    pub depth: usize,
    /// The number of receives in the queue.
    pub used: usize,
    /// The number of queue pairs that use the queue.
    pub users: u32,
}

/// A completion queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CqView {
    /// The queue's number within the device.
    pub number: u32,
    /// The capacity of the queue, in completions.
    pub depth: usize,
    /// The number of completions in the queue.
    pub used: usize,
    /// Whether a completion was lost.
    pub overrun: bool,
}

/// A link.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkView {
    /// The device at the other end.
    pub node: NodeId,
    /// "loopback", "requester" (we send the requests) or "responder".
    pub role: String,
    /// Whether the link is up.
    pub up: bool,
    /// Whether large payloads are copied directly between the processes, by remote iovecs.
    #[serde(alias = "by_reference")]
    pub remote_iovec: bool,
    /// The number of sent fragments that are not acknowledged.
    pub outstanding: u32,
    /// How many writes this side has copied itself, under warrants of the peer.
    #[serde(default)]
    pub pushed: u64,
    /// How many warrants the peer has for this side's memory.
    #[serde(default)]
    pub warrants: u32,
}

/// A counter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CounterView {
    /// The counter's number.
    pub number: u32,
    /// The number of writes and atomics by peers.
    pub writes: u64,
    /// The number of reads by peers.
    pub reads: u64,
    /// The number of bytes that these accesses moved.
    pub bytes: u64,
}

impl Device {
    /// The current state of this device.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn inspect(&self) -> Result<Inspection, DeviceError> {
        self.check()?;
        Ok(inspect(self.shared()))
    }
}

/// The devices on a host that this process may inspect.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The inspections of the devices that answered.
    pub devices: Vec<Inspection>,
    /// Processes whose devices run another version of rkey.
    pub other_versions: Vec<OtherVersion>,
    /// Processes whose devices did not answer in time.
    pub silent: Vec<SilentProcess>,
}

/// A process whose device did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentProcess {
    /// The PID of the process.
    pub pid: u32,
    /// The name of its program, if `/proc` shows it.
    pub program: Option<String>,
    /// Whether the process is stopped, by a signal or a debugger. A process that is not stopped is busy or hangs.
    pub stopped: bool,
}

/// A process whose device uses another version of the link protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherVersion {
    /// The process's PID, if it has one in our PID namespace.
    pub pid: Option<u32>,
    /// The process's user ID.
    pub uid: u32,
    /// The version that the process uses. Ours is [`rkey_link::shm::PROTOCOL_VERSION`].
    pub version: u16,
}

impl std::fmt::Display for OtherVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (peer, there) = (process::name_of(self.pid), self.version);
        write!(
            f,
            "{peer} runs another version of rkey: it uses link protocol {there}, and this process uses {PROTOCOL_VERSION}"
        )
    }
}

/// Lists the devices that processes of this user have open in this network namespace (with `RKEY_SHARE=all`: those that are
/// shared with everyone). Devices that do not answer within a second (their process is stopped, for example) are left out;
/// [`list_all`] names them.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn list_devices(config: &Config) -> Result<Vec<Inspection>, DeviceError> {
    list_all(config).map(|listing| listing.devices)
}

/// Like [`list_devices`], and also returns the processes whose devices cannot be shown because they run another version
/// of rkey or do not answer.
///
/// # Errors
/// Same as [`list_devices`].
pub fn list_all(config: &Config) -> Result<Listing, DeviceError> {
    let scope = Scope::of(config.share);
    let blocks = names::claimed_blocks(scope).map_err(DeviceError::io("reading /proc/net/unix"))?;
    let local = LocalNode::new(NodeId::default(), link_config(config))
        .map_err(DeviceError::io("preparing an inspection"))?;
    // Send all requests first, then wait for all answers together.
    let requests: Vec<(u16, OtherConnection)> = blocks
        .into_iter()
        .filter_map(|block| {
            let name = names::block_name(scope, block);
            Some((
                block,
                OtherConnection::connect(name.as_bytes(), &local, REQUEST).ok()?,
            ))
        })
        .collect();
    let until = Instant::now() + TIMEOUT;
    let mut found: Vec<Inspection> = Vec::new();
    let mut other_versions = Vec::new();
    let mut unanswered: Vec<u32> = Vec::new();
    for (block, connection) in requests {
        match receive(&connection, until) {
            Err(HandshakeError::Version(version)) => {
                let Credentials { pid, uid, .. } = connection.credentials();
                let other = OtherVersion { pid, uid, version };
                if !other_versions.contains(&other) {
                    other_versions.push(other);
                }
            }
            // A device with several blocks answers on each.
            Ok(Some(inspection)) if found.iter().any(|f| f.node == inspection.node) => {}
            Ok(Some(inspection)) => found.push(inspection),
            Ok(None) => {
                tracing::debug!(
                    block,
                    "a device did not answer in time, or its answer is malformed"
                );
                unanswered.extend(connection.credentials().pid);
            }
            Err(error) => tracing::debug!(block, %error, "cannot inspect a device"),
        }
    }
    found.sort_by_key(|f| (f.pid, f.node));
    unanswered.sort_unstable();
    unanswered.dedup();
    // A process may have answered for another of its blocks.
    unanswered.retain(|&pid| found.iter().all(|device| device.pid != pid));
    Ok(Listing {
        devices: found,
        other_versions,
        silent: unanswered.into_iter().filter_map(silent).collect(),
    })
}

/// A live process whose device does not answer.
fn silent(pid: u32) -> Option<SilentProcess> {
    (!process::is_exiting(pid)).then(|| SilentProcess {
        pid,
        program: process::program(pid),
        stopped: process::is_stopped(pid),
    })
}

/// The answer of a device. `None`: it is malformed, or did not arrive in time.
fn receive(
    connection: &OtherConnection,
    until: Instant,
) -> Result<Option<Inspection>, HandshakeError> {
    loop {
        match connection.receive()? {
            Step::Pending => {
                if !wait_readable(connection.as_fd(), Some(until)).unwrap_or(false) {
                    return Ok(None);
                }
            }
            Step::Done(control) => return Ok(read_answer(control)),
        }
    }
}

fn read_answer(Control { bytes, mut fds }: Control) -> Option<Inspection> {
    if bytes != ANSWER {
        return None;
    }
    let file = File::from(fds.pop()?);
    // Accept only a file of bounded length: reading a pipe could block forever.
    if !file
        .metadata()
        .is_ok_and(|m| m.is_file() && m.len() <= MAX_LEN)
    {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_LEN).read_to_end(&mut text).ok()?;
    decode(&text)
}

/// Parses an inspection that another process wrote.
pub(crate) fn decode(text: &[u8]) -> Option<Inspection> {
    serde_json::from_slice(text).ok()
}

/// Answers a client that requests an inspection. Never blocks.
pub(crate) fn answer(shared: &Shared, connection: &OtherConnection) -> std::io::Result<()> {
    let mut inspection = inspect(shared);
    if connection.credentials().uid != inspection.uid {
        inspection.denials.clear();
        inspection.guessers.clear();
        if shared.config.explain != Explain::All {
            // Denials do not reveal to such a peer where memory is, so inspections must not, either.
            inspection.protection.regions.clear();
            inspection.protection.windows.clear();
        }
    }
    let text = serde_json::to_vec(&inspection).map_err(std::io::Error::other)?;
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("rkey-inspection", flags)?);
    file.write_all(&text)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    connection.send(ANSWER, &[file.as_fd()])
}

fn inspect(shared: &Shared) -> Inspection {
    let mut protection = shared.protection.snapshot();
    let (regions, windows) = (protection.regions.len(), protection.windows.len());
    protection.regions.truncate(MAX_LISTED);
    protection.windows.truncate(MAX_LISTED);
    let (engine, roles, guessers, wire_drops) = {
        let engine = shared.driver.lock();
        let roles: BTreeMap<u32, &str> = engine
            .links()
            .map(|(id, link)| (id.index, role_of(link)))
            .collect();
        let drops = engine.wire_drops();
        (engine.snapshot(), roles, engine.guessers(), drops)
    };
    let (endpoints, endpoint_count) = shared.descriptions.collect();
    let objects = shared.descriptions.collect_objects();
    let peers = engine.qps.iter().filter_map(|qp| qp.peer).collect();
    Inspection {
        node: shared.node,
        pid: shared.node.pid,
        uid: rustix::process::geteuid().as_raw(),
        command: process::own_command(),
        api: api_of(&protection, shared.config.api),
        blocks: shared.qp_numbers.numbers(),
        driver: shared.driver.schedule.mode().to_string(),
        protection,
        regions,
        windows,
        qps: engine.qps.iter().map(view_qp).collect(),
        srqs: engine.srqs.iter().map(view_srq).collect(),
        cqs: engine.cqs.iter().map(view_cq).collect(),
        links: engine
            .links
            .iter()
            .map(|link| view_link(link, &roles))
            .collect(),
        departed: shared.departed.of(&peers),
        counters: shared
            .counters
            .all()
            .into_iter()
            .map(|(number, c)| CounterView {
                number,
                writes: c.writes,
                reads: c.reads,
                bytes: c.bytes,
            })
            .collect(),
        endpoints,
        endpoint_count,
        object_count: objects.count,
        objects: objects.list,
        caches: shared.caches.collect(),
        wire: shared.wire.as_ref().map(|wire| wire.describe()),
        wire_drops,
        denied: shared.denials.reports().total(),
        denials: shared
            .denials
            .reports()
            .all()
            .iter()
            .filter(|report| !report.echo)
            .map(|report| DenialView::new(report, shared.node))
            .collect(),
        guessers: guessers.iter().map(GuesserView::from).collect(),
    }
}

/// The API in whose terms a device is shown: that of its domains, if they have only one.
fn api_of(protection: &Snapshot, opened_by: Api) -> Api {
    let mut apis = protection.domains.iter().map(|domain| domain.id.api());
    match apis.next() {
        None => opened_by,
        Some(first) if apis.all(|api| api == first) => first,
        Some(_) => Api::Native,
    }
}

fn view_qp(qp: &QpSnapshot) -> QpView {
    QpView {
        qpn: qp.qpn,
        qp_type: qp.qp_type.to_string(),
        state: qp.state.to_string(),
        domain: qp.domain.number(),
        peer_qpn: qp.peer_qpn,
        peer: qp.peer,
        host: qp.host,
        sends: qp.sends,
        started: qp.sends_started,
        receives: qp.receives,
        waits_for: qp.waits_for.map(|what| format!("{what:?}")),
        network: qp.network,
    }
}

fn view_srq(srq: &SrqSnapshot) -> SrqView {
    SrqView {
        number: srq.index,
        domain: srq.domain.number(),
        depth: srq.depth as usize,
        used: srq.used as usize,
        users: srq.users,
    }
}

fn view_cq(cq: &CqSnapshot) -> CqView {
    CqView {
        number: cq.index,
        depth: cq.depth as usize,
        used: cq.used as usize,
        overrun: cq.overrun,
    }
}

fn view_link(link: &LinkSnapshot, roles: &BTreeMap<u32, &str>) -> LinkView {
    LinkView {
        node: link.node,
        role: roles
            .get(&link.index)
            .copied()
            .unwrap_or_default()
            .to_owned(),
        up: link.down.is_none(),
        remote_iovec: link.capabilities.remote_iovec && !link.no_remote_iovec,
        outstanding: link.outstanding,
        pushed: link.pushed,
        warrants: link.warrants,
    }
}

fn role_of(link: &AnyLink) -> &'static str {
    match link.role() {
        LinkRole::Both => "loopback",
        LinkRole::Requester => "requester",
        LinkRole::Responder => "responder",
    }
}
