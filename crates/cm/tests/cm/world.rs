//! The test world: two hosts, each with a manager and a program, and a network that loses, duplicates, delays and
//! reorders messages.

use rkey_cm::address::{Guid, PortSpace, ServiceId};
use rkey_cm::manager::{
    Accept, Config, Connect, Event, Kind, ListenOn, Manager, PathOptions, QueuePair, Transmit,
};
use rkey_cm::wire::{Ece, Mad, Message, PrivateData, RejectReason, Transport};
use rkey_cm::{ConnectionId, ListenerId, State};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const PORT: u16 = 7174;

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

pub(crate) fn address(side: usize) -> IpAddr {
    [10, 77, 0, 1 + side as u8].into()
}

pub(crate) fn config(side: usize) -> Config {
    Config::new(Guid([2, 0, 0, 0, 0, 0, 0, side as u8]), 1000 + side as u128)
}

/// How a host's program handles a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Accept,
    Reject,
    /// Takes the request and does not decide.
    Keep,
    /// Does not even take the request.
    Ignore,
}

/// A host: a manager, and a program that follows a policy.
pub(crate) struct Host {
    pub(crate) manager: Manager,
    pub(crate) policy: Policy,
    /// Whether the program brings up its queue pair at once.
    pub(crate) establishes: bool,
    pub(crate) events: Vec<Event>,
    next_qpn: u32,
}

impl Host {
    fn new(side: usize, config: Config) -> Self {
        Self {
            manager: Manager::new(config),
            policy: Policy::Accept,
            establishes: true,
            events: Vec::new(),
            next_qpn: 0x100 + 0x10_0000 * side as u32,
        }
    }

    pub(crate) fn queue_pair(&mut self) -> QueuePair {
        self.next_qpn += 1;
        queue_pair(self.next_qpn)
    }

    /// The names of the events of a connection, in order.
    pub(crate) fn history(&self, connection: ConnectionId) -> Vec<String> {
        let of = self.events.iter();
        let of = of.filter(|event| event.connection() == connection);
        of.map(|event| {
            let text = format!("{event:?}");
            text.split([' ', '(', '{']).next().unwrap_or("").to_owned()
        })
        .collect()
    }
}

pub(crate) fn queue_pair(qpn: u32) -> QueuePair {
    QueuePair {
        qpn,
        starting_psn: 0x12_3456,
        responder_resources: 3,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry: 6,
        srq: false,
        flow_control: false,
    }
}

/// How the network treats messages. Percentages are of all messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    /// The maximum transit time of a message, in nanoseconds.
    pub(crate) delay: u64,
    /// How many times in a row the same message of a connection may be lost.
    pub(crate) most_lost: u32,
}

pub(crate) const FAIR: Conditions = Conditions {
    lost: 0,
    doubled: 0,
    delay: 0,
    most_lost: 0,
};

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) hosts: [Host; 2],
    pub(crate) conditions: Conditions,
    /// Messages in transit, by arrival time.
    under_way: BTreeMap<(u64, u64), Transmit>,
    sequence: u64,
    random: u64,
    lost_in_a_row: HashMap<(IpAddr, [u8; 2], [u8; 4]), u32>,
    /// All messages that were sent, with the time.
    pub(crate) sent: Vec<(u64, Mad)>,
    /// Decides whether a message is lost, before random losses.
    pub(crate) drop_if: Option<fn(&Mad) -> bool>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(config(A), config(B))
    }

    pub(crate) fn with(a: Config, b: Config) -> Self {
        Self {
            now: 0,
            hosts: [Host::new(A, a), Host::new(B, b)],
            conditions: FAIR,
            under_way: BTreeMap::new(),
            sequence: 0,
            random: 1,
            lost_in_a_row: HashMap::new(),
            sent: Vec::new(),
            drop_if: None,
        }
    }

    /// Sets the seed of all random choices.
    pub(crate) fn seed(&mut self, seed: u64) {
        self.random = seed | 1;
    }

    pub(crate) fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    pub(crate) fn listen(&mut self, side: usize, backlog: usize) -> ListenerId {
        self.listen_with(side, backlog, Kind::Connected(Transport::Rc))
    }

    pub(crate) fn listen_with(&mut self, side: usize, backlog: usize, kind: Kind) -> ListenerId {
        let service = ServiceId::new(PortSpace::Tcp, PORT);
        let manager = &mut self.hosts[side].manager;
        manager
            .listen(ListenOn::Any, service, kind, backlog)
            .expect("the port is free")
    }

    pub(crate) fn request(&mut self, from: usize, data: &[u8]) -> Connect {
        Connect {
            from: SocketAddr::new(address(from), 40_000),
            to: SocketAddr::new(address(1 - from), PORT),
            space: PortSpace::Tcp,
            transport: Transport::Rc,
            queue_pair: self.hosts[from].queue_pair(),
            path: PathOptions::default(),
            ece: Ece::default(),
            data: PrivateData::new(data).expect("short"),
        }
    }

    pub(crate) fn connect(&mut self, from: usize, data: &[u8]) -> ConnectionId {
        let request = self.request(from, data);
        let now = self.now;
        let manager = &mut self.hosts[from].manager;
        manager.connect(now, &request).expect("there is room")
    }

    /// Connects A to B; returns both connection ids.
    pub(crate) fn pair(&mut self) -> (ConnectionId, ConnectionId) {
        self.listen(B, 8);
        let a = self.connect(A, b"");
        self.run(0);
        let b = self.requested(B);
        assert_eq!(self.state(A, a), Some(State::Established));
        assert_eq!(self.state(B, b), Some(State::Established));
        (a, b)
    }

    /// The connection of the last request that a program received.
    pub(crate) fn requested(&self, side: usize) -> ConnectionId {
        let mut events = self.hosts[side].events.iter().rev();
        let request = events
            .find(|event| matches!(event, Event::ConnectRequest(_) | Event::DatagramRequest(_)));
        request.expect("a request").connection()
    }

    pub(crate) fn state(&self, side: usize, id: ConnectionId) -> Option<State> {
        self.hosts[side].manager.state(id)
    }

    /// Runs both hosts and the network for this many nanoseconds.
    pub(crate) fn run(&mut self, time: u64) {
        let end = self.now + time;
        loop {
            self.exchange_until_idle();
            let timers = self.hosts.iter().map(|host| host.manager.next_deadline());
            let next = self.under_way.keys().next().map(|(at, _)| *at);
            let Some(next) = timers.chain([next]).flatten().min().filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(next);
            for host in &mut self.hosts {
                host.manager.advance(self.now);
            }
            while let Some(entry) = self.under_way.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let it = entry.remove();
                self.deliver(&it);
            }
        }
        self.now = end;
    }

    /// Runs until no messages or timers are left.
    pub(crate) fn run_to_the_end(&mut self) {
        for _ in 0..100 {
            self.run(600 * SECOND);
            let idle = |host: &Host| host.manager.next_deadline().is_none();
            if self.under_way.is_empty() && self.hosts.iter().all(idle) {
                return;
            }
        }
        panic!("a timer never stops");
    }

    pub(crate) fn deliver(&mut self, it: &Transmit) {
        let to = usize::from(it.to == address(B));
        let manager = &mut self.hosts[to].manager;
        manager.receive(self.now, it.from, it.to, &it.mad);
    }

    /// Transmits the managers' messages and lets the programs handle their events, until both are idle.
    fn exchange_until_idle(&mut self) {
        loop {
            let mut idle = true;
            for side in [A, B] {
                while let Some(it) = self.hosts[side].manager.next_transmit() {
                    idle = false;
                    self.post(it);
                }
                while let Some(event) = self.hosts[side].manager.next_event() {
                    idle = false;
                    self.handle(side, event);
                }
            }
            if idle {
                return;
            }
        }
    }

    fn post(&mut self, it: Transmit) {
        let mad = Mad::decode(&it.mad).expect("what we send can be read");
        self.sent.push((self.now, mad));
        if self.drop_if.is_some_and(|drop_if| drop_if(&mad)) {
            return;
        }
        let mut attribute = [0; 2];
        attribute.copy_from_slice(&it.mad[16..18]);
        let mut id = [0; 4];
        id.copy_from_slice(&it.mad[24..28]);
        let lost = self.draw(100) < u64::from(self.conditions.lost);
        let most = self.conditions.most_lost;
        let in_a_row = self.lost_in_a_row.entry((it.from, attribute, id));
        let in_a_row = in_a_row.or_default();
        if lost && *in_a_row < most {
            *in_a_row += 1;
            return;
        }
        *in_a_row = 0;
        let doubled = self.draw(100) < u64::from(self.conditions.doubled);
        for _ in 0..1 + usize::from(doubled) {
            let at = self.now + self.draw(self.conditions.delay + 1);
            self.sequence += 1;
            self.under_way.insert((at, self.sequence), it.clone());
        }
    }

    fn handle(&mut self, side: usize, event: Event) {
        let now = self.now;
        let host = &mut self.hosts[side];
        let id = event.connection();
        match &event {
            Event::ConnectRequest(_) if host.policy != Policy::Ignore => {
                host.manager.take_request(id).expect("it is here");
                decide(host, now, id);
            }
            Event::ConnectResponse { .. } if host.establishes => {
                host.manager.establish(now, id).expect("it fits");
            }
            // The program confirms. If it initiated the disconnect itself, this has no effect.
            Event::Disconnected { .. } => {
                host.manager.disconnect(now, id).expect("it fits");
            }
            _ => {}
        }
        host.events.push(event);
    }

    /// The kinds of all messages that were sent, in order.
    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        self.sent.iter().map(|(_, mad)| kind(mad)).collect()
    }
}

fn decide(host: &mut Host, now: u64, id: ConnectionId) {
    match host.policy {
        Policy::Accept => {
            let accept = Accept {
                queue_pair: host.queue_pair(),
                ece: Ece::default(),
                data: PrivateData::new(b"welcome").expect("short"),
            };
            host.manager.accept(now, id, &accept).expect("it fits");
        }
        Policy::Reject => {
            let data = PrivateData::new(b"go away").expect("short");
            let reason = RejectReason::CONSUMER;
            let refused = host.manager.reject(now, id, reason, data, 0);
            refused.expect("it fits");
        }
        Policy::Keep | Policy::Ignore => {}
    }
}

pub(crate) fn kind(mad: &Mad) -> &'static str {
    match mad.message {
        Message::Req(_) => "REQ",
        Message::Mra(_) => "MRA",
        Message::Rej(_) => "REJ",
        Message::Rep(_) => "REP",
        Message::Rtu(_) => "RTU",
        Message::Dreq(_) => "DREQ",
        Message::Drep(_) => "DREP",
        Message::SidrReq(_) => "SIDR_REQ",
        Message::SidrRep(_) => "SIDR_REP",
    }
}
