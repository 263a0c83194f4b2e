//! Other hosts, over RoCEv2: the UDP sockets of a process, and queue pair 1.
//!
//! A [`Wire`] has one socket for each address (`socket`), and a thread that sleeps until a datagram arrives (`receiver`). The
//! devices and the connection manager of a process share one wire per setting. A datagram goes to the queue pair that it names:
//!
//! | destination | receiver |
//! | --- | --- |
//! | queue pair 1 | the connection manager that the message names, over the same sockets that processes of this host use (`cm::remote`); `stateless` answers if there is none |
//! | a queue pair of a device of this process | its engine |
//! | any other queue pair | the process that owns its block (`forward`) |
//!
//! | file | what it is |
//! | --- | --- |
//! | `agreements` | which peers use selective retransmission |
//! | `addresses` | which addresses to serve, and their path MTU |
//! | `batch` | the packets that arrived together, by device |
//! | `bundle` | datagrams that one process forwards to another in one message |
//! | `counters` | packets received, sent, and dropped by reason |
//! | `datagram` | classification of a datagram |
//! | `exit` | acknowledgements that the process owes when it exits |
//! | `faults` | faults that are injected on purpose |
//! | `forward` | forwarding between processes |
//! | `lending` | receiving in the threads of a program that polls |
//! | `options` | socket options without a safe wrapper |
//! | `outgoing` | packets to send |
//! | `receiver` | the thread |
//! | `receivers` | the devices that receive packets |
//! | `refusals` | packets that the kernel refuses to send |
//! | `route` | the route from a device to an address |
//! | `seal`, `replay` | encryption and authentication, and what has arrived before |
//! | `sleeping` | receiving in the threads of a program that sleeps |
//! | `socket` | the socket of an address |
//! | `stateless` | answers to messages without a receiver |
//! | `waiting` | requests that wait for a listener |
//!
//! Everything that arrives is untrusted, and a dropped packet gets no answer.

mod addresses;
mod agreements;
mod batch;
mod bundle;
mod counters;
pub(crate) mod datagram;
mod exit;
mod faults;
mod forward;
mod lending;
mod options;
pub(crate) mod outgoing;
mod receiver;
mod receivers;
mod refusals;
mod replay;
mod route;
mod seal;
#[cfg(test)]
mod sealed_tests;
mod sleeping;
mod socket;
mod stateless;
#[cfg(test)]
pub(crate) mod tests;
mod waiting;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rkey_cm::address::{Gid, Guid};
use rkey_cm::wire::MAD;
use rkey_roce::icrc::{self, Flow};
use rkey_roce::packet::Mtu;
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};

use crate::capture::Capture;
use crate::cm::fork::KeptFromChild;
use crate::cm::packet::Protection;
use crate::config::{WireConfig, WireSetting};
use crate::ecn::Ecn;
use crate::error::DeviceError;
use crate::progress::reactor::{Reactor, Token};
pub use addresses::{WirePath, chosen, route};
use agreements::Agreements;
use counters::WireCounters;
pub use counters::{Counts, Dropped};
use datagram::{Outgoing, Reader};
pub(crate) use exit::send_held;
use faults::Injector;
pub use faults::{FaultCounts, FaultDescription};
use forward::Forwarding;
use lending::Lending;
use outgoing::OutgoingPackets;
use receiver::{MessageDelivery, Scratch};
use receivers::Receivers;
pub(crate) use receivers::{Arrived, Receiver};
use seal::{Kind, Seal};
pub(crate) use sleeping::PacketSleeper;
use sleeping::Sleepers;
use socket::{DatagramSent, Port};
use stateless::StatelessReplies;
use waiting::WaitingRequests;

/// The wires of this process, by their settings.
static WIRES: Mutex<Vec<(WireConfig, Weak<Wire>)>> = Mutex::new(Vec::new());
/// How long to wait while another thread opens a wire. If the process forks in the meantime, nothing unlocks [`WIRES`] in the child.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// The sockets on which a process receives packets from other hosts.
#[derive(Debug)]
pub struct Wire {
    core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State shared by the wire's thread and polls.
struct Core {
    ports: Vec<Port>,
    tokens: Vec<Token>,
    refused: Vec<(IpAddr, String)>,
    capture: Option<Arc<Capture>>,
    counters: WireCounters,
    seal: Option<Arc<Seal>>,
    faults: Option<Injector>,
    forwarding: Forwarding,
    receivers: Receivers,
    scratch: Mutex<Scratch>,
    lending: Lending,
    sleepers: Sleepers,
    /// How many devices delay acknowledgements.
    holding: AtomicUsize,
    stateless: Mutex<StatelessReplies>,
    waiting: Mutex<WaitingRequests>,
    delivery: MessageDelivery,
    agreements: Agreements,
    /// Counts the messages sent from queue pair 1.
    messages: AtomicU32,
    reactor: Reactor,
    doorbell: Arc<OwnedFd>,
    _kept: KeptFromChild,
    stops: AtomicBool,
    /// Why the thread has ended, if a bug ended it.
    failure: OnceLock<String>,
    incarnation: u64,
}

/// A description of a wire for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireDescription {
    /// The addresses on which the wire receives packets.
    pub addresses: Vec<ServedAddress>,
    /// The addresses on which the wire cannot receive packets, and why.
    pub refused: Vec<(IpAddr, String)>,
    /// The wire's counters.
    pub counts: Counts,
    /// Whether packets are encrypted and authenticated (`RKEY_WIRE_KEY`).
    pub sealed: bool,
    /// The faults that the wire injects; `None` without `RKEY_FAULT`.
    pub faults: Option<FaultDescription>,
    /// The file in which packets are captured; `None` without `RKEY_CAPTURE`.
    pub capture: Option<PathBuf>,
}

/// An address on which a wire receives packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedAddress {
    /// The address.
    pub address: IpAddr,
    /// The address as a GID in verbs.
    pub gid: std::net::Ipv6Addr,
    /// The UDP port.
    pub port: u16,
    /// The interface that owns the address.
    pub interface: String,
    /// The largest path MTU that fits the interface, in bytes.
    pub path_mtu: usize,
}

impl Wire {
    /// The wire of this process for a setting. `None` if the setting is off, or if even a wire without addresses cannot be
    /// opened, which is logged. An address that cannot be used is also logged; the others work.
    #[must_use]
    pub fn of_process(setting: &WireConfig) -> Option<Arc<Self>> {
        if setting.addresses == WireSetting::Off {
            return None;
        }
        let mut wires = WIRES.try_lock_for(OPEN_TIMEOUT)?;
        wires.retain(|(_, wire)| wire.strong_count() > 0);
        let known = wires.iter().filter(|(it, _)| it == setting);
        let known = known.filter_map(|(_, wire)| wire.upgrade());
        if let Some(wire) = known.into_iter().find(|wire| wire.core.is_usable()) {
            return Some(wire);
        }
        let chosen = chosen(&setting.addresses);
        let opened = Self::open(&chosen, setting).map(Arc::new);
        if let Ok(wire) = &opened {
            wires.push((setting.clone(), Arc::downgrade(wire)));
        }
        // The log may block; other threads must be able to open wires.
        drop(wires);
        if chosen.is_empty() {
            tracing::warn!(
                "RKEY_WIRE=auto: this host has only loopback and link-local addresses, so it cannot reach other hosts"
            );
        }
        match &opened {
            Ok(wire) => wire.log_problems(),
            Err(error) => tracing::warn!("cannot reach other hosts: {error}"),
        }
        opened.ok()
    }

    /// Logs which addresses cannot be used, and that faults are injected.
    fn log_problems(&self) {
        for (ip, why) in &self.core.refused {
            tracing::warn!("other hosts cannot reach this program at {ip}: {why}");
        }
        if let Some(injector) = &self.core.faults {
            let faults = injector.describe().faults;
            tracing::warn!(
                "RKEY_FAULT is set: faults are injected into packets to other hosts ({faults})"
            );
        }
    }

    /// Opens a socket for each of these addresses and starts the thread.
    fn open(chosen: &[IpAddr], setting: &WireConfig) -> io::Result<Self> {
        let seal = setting.key.as_ref().map(Seal::new).transpose();
        let seal = seal?.map(Arc::new);
        let mut ports = Vec::new();
        let mut refused = Vec::new();
        for ip in chosen {
            match Port::bind(*ip, seal.as_ref()) {
                Ok(port) => ports.push(port),
                Err(why) => refused.push((*ip, why)),
            }
        }
        let reactor = Reactor::new().map_err(io::Error::other)?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let doorbell = Arc::new(doorbell);
        reactor
            .add(&doorbell, Token::DOORBELL)
            .map_err(io::Error::other)?;
        let mut tokens = Vec::new();
        for port in &ports {
            let token = reactor.new_token();
            port.with_socket(|socket| reactor.add_once(socket, token))
                .transpose()
                .map_err(io::Error::other)?;
            tokens.push(token);
        }
        let mut secret = [0; 24];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let (guid, secret) = secret.split_at(8);
        let mut guid = Guid(guid.try_into().map_err(io::Error::other)?);
        // This bit marks the GUID as locally administered, so it cannot be that of a real device.
        guid.0[0] |= 2;
        let secret = u128::from_ne_bytes(secret.try_into().map_err(io::Error::other)?);
        let sleepers = Sleepers::new(&ports).map_err(io::Error::other)?;
        let kept = [reactor.descriptor(), Arc::clone(&doorbell)].into_iter();
        let kept = kept.chain([sleepers.sockets().descriptor()]).collect();
        let core = Arc::new(Core {
            ports,
            tokens,
            refused,
            capture: setting.capture.as_deref().and_then(Capture::of_process),
            counters: WireCounters::default(),
            seal,
            faults: Injector::new(setting.faults).map_err(io::Error::other)?,
            forwarding: Forwarding::new(),
            receivers: Receivers::default(),
            scratch: Mutex::new(Scratch::new()),
            lending: Lending::default(),
            sleepers,
            holding: AtomicUsize::new(0),
            stateless: Mutex::new(StatelessReplies::new(guid, secret, crate::time::now())),
            waiting: Mutex::default(),
            delivery: MessageDelivery::new(),
            agreements: Agreements::default(),
            messages: AtomicU32::new(getrandom::u32().map_err(io::Error::other)?),
            _kept: KeptFromChild::new(kept),
            reactor,
            doorbell,
            stops: AtomicBool::new(false),
            failure: OnceLock::new(),
            incarnation: rkey_base::process::incarnation(),
        });
        let of_thread = Arc::clone(&core);
        let thread = crate::threads::spawn("rkey-wire", move || of_thread.main())?;
        Ok(Self {
            core,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Whether the wire receives packets at this address.
    #[must_use]
    pub fn serves(&self, address: IpAddr) -> bool {
        self.core.is_usable() && self.core.port(address).is_some()
    }

    /// The addresses at which the wire receives packets.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let ports = match self.core.is_usable() {
            true => &self.core.ports[..],
            false => &[],
        };
        ports.iter().map(|port| port.address.ip())
    }

    /// The route to another host, as the routing table has it now: from `local` if given, else from any address of this wire.
    /// `None` if there is no route.
    #[must_use]
    pub fn path(&self, remote: IpAddr, local: Option<IpAddr>) -> Option<WirePath> {
        let local = local.map(|it| it.to_canonical());
        let overhead = seal::overhead(self.core.seal.is_some());
        let path = addresses::path(remote.to_canonical(), local, overhead)?;
        self.serves(path.local).then_some(path)
    }

    /// Records that a queue pair on another host, to which one of this process will be connected, uses selective retransmission.
    pub(crate) fn agree(&self, host: IpAddr, qpn: u32) {
        self.core.agreements.add(host, qpn);
    }

    /// Whether a queue pair uses selective retransmission, to which one of this process is connected now.
    pub(crate) fn take_agreement(&self, host: IpAddr, qpn: u32) -> bool {
        self.core.agreements.take(host, qpn)
    }

    /// The largest path MTU that fits the interface of one of the wire's addresses now.
    #[must_use]
    pub fn mtu(&self, local: IpAddr) -> Option<Mtu> {
        self.core.port(local).map(Port::mtu)
    }

    /// Describes the wire for display.
    #[must_use]
    pub fn describe(&self) -> WireDescription {
        let served = |port: &Port| ServedAddress {
            address: port.address.ip(),
            gid: Gid::from(port.address.ip()).0.into(),
            port: port.address.port(),
            interface: port.interface.clone(),
            path_mtu: port.mtu().bytes(),
        };
        let core = &self.core;
        let (mut addresses, mut refused) = (Vec::new(), core.refused.clone());
        match core.failure.get() {
            None => addresses.extend(core.ports.iter().map(served)),
            Some(why) => {
                let closed = core.ports.iter().map(|it| it.address.ip());
                refused.extend(closed.map(|ip| (ip, why.clone())));
            }
        }
        WireDescription {
            addresses,
            refused,
            counts: core.counters.now(),
            sealed: core.seal.is_some(),
            faults: core.faults.as_ref().map(Injector::describe),
            capture: core.capture.as_ref().map(|it| it.path().to_owned()),
        }
    }

    /// Registers a device until [`Wire::remove_receiver`].
    pub(crate) fn add_receiver(&self, receiver: &Arc<dyn Receiver>) {
        let core = &self.core;
        core.receivers.add(receiver, &core.lending.devices);
        if let Some(why) = core.failure.get() {
            receiver.failed(why);
        }
    }

    /// Reverses [`Wire::add_receiver`], and waits until no other thread uses the device for its packets: a second at most.
    pub(crate) fn remove_receiver(&self, receiver: &dyn Receiver) {
        let core = &self.core;
        if !core.receivers.remove(receiver, &core.lending.devices) {
            tracing::warn!(
                "the wire is busy while a device closes: packets that wait are lost if the process exits now"
            );
        }
    }

    /// Receives the packets for a block of queue pair numbers that other processes forward.
    ///
    /// # Errors
    /// Another process has claimed the block's name, and would receive its packets.
    pub(crate) fn claim_block(&self, block: u16) -> Result<(), DeviceError> {
        let core = &self.core;
        (core.forwarding.claim(&core.reactor, block)).map_err(DeviceError::io(
            "claiming queue pair numbers for other hosts",
        ))
    }

    /// Reverses [`Wire::claim_block`].
    pub(crate) fn release_block(&self, block: u16) {
        self.core.forwarding.release(&self.core.reactor, block);
    }

    /// Sends a message of the connection manager. The message may be lost; the manager that sent it retransmits it.
    pub(crate) fn send_message(&self, from: IpAddr, to: IpAddr, mad: &[u8; MAD]) {
        self.core.send_message(from, to, mad);
    }

    /// Whether the wire accepts a message of another host that arrived with this protection: with our key, and for the first time;
    /// without a key, only plain ones.
    pub(crate) fn admits(&self, from: IpAddr, protection: &Protection) -> bool {
        let admitted = match &self.core.seal {
            Some(seal) => seal.admit(from.to_canonical(), protection),
            None if *protection == Protection::default() => Ok(()),
            None => Err(Dropped::Forged),
        };
        if let Err(reason) = admitted {
            self.core.counters.dropped(reason, 1);
        }
        admitted.is_ok()
    }

    /// Whether this process has a thread that receives packets.
    pub(crate) fn is_usable(&self) -> bool {
        self.core.is_usable()
    }

    /// Whether packets of one length, and a shorter one, from this address to one host leave in one system call.
    pub(crate) fn sends_together(&self, local: IpAddr) -> bool {
        self.core.faults.is_none()
            && self
                .core
                .port(local)
                .is_some_and(|it| it.max_datagrams() > 1)
    }

    /// Sends packets and empties `outgoing`.
    pub(crate) fn send(&self, outgoing: &mut OutgoingPackets) {
        if let Some(injector) = &self.core.faults {
            return self.core.send_with_faults(injector, outgoing);
        }
        let (sent, lost) = outgoing.send(&self.core.ports, self.core.capture.as_ref());
        self.core.counters.sent(sent);
        self.core.counters.dropped(Dropped::Unsent, lost);
    }
}

impl Core {
    fn is_forked(&self) -> bool {
        self.incarnation != rkey_base::process::incarnation()
    }

    /// Whether this process has a thread that receives packets.
    fn is_usable(&self) -> bool {
        !self.is_forked() && self.failure.get().is_none()
    }

    fn port(&self, local: IpAddr) -> Option<&Port> {
        let local = local.to_canonical();
        self.ports.iter().find(|it| it.address.ip() == local)
    }

    fn send_message(&self, from: IpAddr, to: IpAddr, mad: &[u8; MAD]) {
        let to = SocketAddr::new(to.to_canonical(), icrc::PORT);
        let Some(flow) = self.port(from).and_then(|it| Flow::new(it.address, to)) else {
            return self.counters.dropped(Dropped::Unsent, 1);
        };
        let psn = self.messages.fetch_add(1, Ordering::Relaxed);
        let bytes = datagram::write(&flow, mad, psn);
        let datagram = Outgoing {
            from,
            to,
            ecn: Ecn::default(),
            bytes,
        };
        let Some(datagram) = self.sealed(Kind::Message, datagram) else {
            return self.counters.dropped(Dropped::Unsent, 1);
        };
        match &self.faults {
            Some(injector) if !self.is_forked() => self.inject(injector, datagram),
            _ => self.send_datagram(&datagram, |port, datagram| {
                matches!(port.send_as_is(datagram), DatagramSent::Yes)
            }),
        }
    }

    /// Seals a datagram, if the wire has a key. `None` in a forked child, and without a socket for its address.
    fn sealed(&self, kind: Kind, datagram: Outgoing) -> Option<Outgoing> {
        let Some(seal) = &self.seal else {
            return Some(datagram);
        };
        let from = self.port(datagram.from)?.address;
        let mut bytes = Vec::new();
        (seal.seal(kind, from, datagram.to, &datagram.bytes, &mut bytes))
            .then_some(Outgoing { bytes, ..datagram })
    }

    /// Captures a datagram as it was before it was sealed.
    fn capture(&self, capture: &Arc<Capture>, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let mut opened = Vec::new();
        let bytes = match &self.seal {
            None => bytes,
            Some(seal) if seal.open(from, to, bytes, &mut opened).is_some() => &opened[..],
            // Damaged on purpose.
            Some(_) => return,
        };
        capture.add((from, to), [(0, bytes)]);
    }

    /// Sends one sealed datagram with `send`, and captures it.
    fn send_datagram(&self, datagram: &Outgoing, send: impl FnOnce(&Port, &Outgoing) -> bool) {
        let port = self.port(datagram.from);
        if let (Some(port), Some(capture)) = (port, &self.capture) {
            self.capture(capture, port.address, datagram.to, &datagram.bytes);
        }
        match port.is_some_and(|port| send(port, datagram)) {
            true => self.counters.sent(1),
            false => self.counters.dropped(Dropped::Unsent, 1),
        }
    }

    /// Wakes the wire's thread.
    fn ring(&self) {
        // The write fails only if the counter overflows.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }
}

/// Whether the bytes would be accepted: a datagram whose checksum is right as sent or after it is corrected, or a message from
/// another process.
pub(crate) fn would_accept(bytes: &[u8]) -> bool {
    let from = SocketAddr::new([192, 0, 2, 2].into(), 49_152);
    let to = SocketAddr::new([192, 0, 2, 1].into(), icrc::PORT);
    let mut sealed = bytes.to_vec();
    if let Some(flow) = Flow::new(from, to) {
        flow.seal(&mut sealed, 0);
    }
    [bytes, &sealed]
        .iter()
        .any(|it| Reader::new(from, to).read(it).is_ok())
        || bundle::unpack(bytes).is_some()
}

impl Drop for Wire {
    fn drop(&mut self) {
        let thread = self.thread.lock().take();
        if self.core.is_forked() {
            // The thread exists only in the parent: this process has nothing to join or detach.
            std::mem::forget(thread);
            return;
        }
        self.core.stops.store(true, Ordering::Release);
        self.core.ring();
        // A device may drop its wire in the wire's own thread.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("bug: the wire's thread panicked");
        }
        if let Some(capture) = &self.core.capture {
            capture.flush();
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}
