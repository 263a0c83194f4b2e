//! The test world: two sides with a connection and a program each, a network, and the time.

use crate::network::{Network, Random};
use crate::program::Program;
use rkey_roce::packet::{Packet, Psn, only_acknowledges};
use rkey_roce::transport::{
    Config, Connection, Event, Operation, PacketBuffer, Received, Status, Target, WorkRequest,
    attach,
};
use std::collections::BTreeMap;

/// How long an acknowledgement waits for a request to which it can be attached, at most, in nanoseconds.
const HELD: u64 = 1_000_000;

/// A scheduled action.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Post(WorkRequest),
    Receive(u64, usize),
}

/// One side.
pub(crate) struct Side {
    pub(crate) connection: Connection,
    pub(crate) program: Program,
    pub(crate) completed: Vec<(u64, Status)>,
    /// Messages that have arrived, with their contents.
    pub(crate) received: Vec<(Received, Vec<u8>)>,
    pub(crate) failed_receives: Vec<(u64, Status)>,
    /// `Refused` and `Failed` events.
    pub(crate) failures: Vec<Event>,
    actions: BTreeMap<(u64, u64), Action>,
    /// An acknowledgement that waits for a request to which it can be attached, and until when.
    held: Option<(u64, Vec<u8>)>,
}

impl Side {
    fn new(config: &Config) -> Self {
        Self {
            connection: Connection::new(config),
            program: Program::new(),
            completed: Vec::new(),
            received: Vec::new(),
            failed_receives: Vec::new(),
            failures: Vec::new(),
            actions: BTreeMap::new(),
            held: None,
        }
    }

    /// Posts a request whose memory is `memory`.
    pub(crate) fn post(&mut self, request: WorkRequest, memory: Vec<u8>) {
        self.program.requests.insert(request.id, memory);
        self.connection.post(request);
    }

    fn act(&mut self, now: u64) {
        while let Some(entry) = self.actions.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                Action::Post(request) => self.connection.post(request),
                Action::Receive(id, length) => {
                    self.program.receives.push_back((id, vec![0; length]));
                }
            }
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.connection.next_event() {
            match event {
                Event::Completed { id, status } => self.completed.push((id, status)),
                Event::Received(received) => {
                    let bytes = self.program.taken.remove(&received.id);
                    let mut bytes = bytes.expect("a receive that was taken");
                    bytes.truncate(if received.is_write {
                        0
                    } else {
                        received.bytes as usize
                    });
                    self.received.push((received, bytes));
                }
                Event::ReceiveFailed { id, status } => {
                    assert!(self.program.taken.remove(&id).is_some());
                    self.failed_receives.push((id, status));
                }
                Event::Refused(_) | Event::Failed => {
                    self.failures.push(event);
                    self.connection.flush();
                }
            }
        }
    }
}

/// Two sides.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) sides: [Side; 2],
    pub(crate) network: Network,
    pub(crate) random: Random,
    /// How many acknowledgements have been attached to requests; `None` if none is.
    pub(crate) attached: Option<u64>,
    sequence: u64,
}

impl World {
    pub(crate) fn new(configs: &[Config; 2], seed: u64) -> Self {
        Self {
            now: 1_000_000,
            sides: [Side::new(&configs[0]), Side::new(&configs[1])],
            network: Network::new(),
            random: Random::new(seed),
            attached: None,
            sequence: 0,
        }
    }

    /// Two sides with typical attributes, some of which `change` modifies on both.
    pub(crate) fn with(change: impl Fn(&mut Config)) -> Self {
        let mut configs = configs(Psn::new(0xff_fff0), Psn::new(7));
        configs.iter_mut().for_each(change);
        Self::new(&configs, 1)
    }

    /// Schedules an action of a side.
    pub(crate) fn plan(&mut self, side: usize, time: u64, action: Action) {
        self.sequence += 1;
        let actions = &mut self.sides[side].actions;
        actions.insert((time, self.sequence), action);
    }

    /// Sends everything that can be sent.
    fn transmit(&mut self) {
        let mut buffer: PacketBuffer = [0; _];
        for side in 0..2 {
            let Side {
                connection,
                program,
                held,
                ..
            } = &mut self.sides[side];
            let mut burst = 0;
            loop {
                let may = connection.may_transmit();
                let Some(length) = connection.transmit(self.now, program, &mut buffer) else {
                    break;
                };
                assert!(may, "side {side} sends although it may not");
                let mut packet = buffer[..length].to_vec();
                if let Some((_, acknowledgement)) = held.take() {
                    if attach(&mut packet, 0, &acknowledgement) {
                        self.attached = self.attached.map(|count| count + 1);
                    } else {
                        (self.network).send(self.now, &mut self.random, side, &acknowledgement);
                    }
                }
                if self.attached.is_some() && only_acknowledges(&packet) {
                    *held = Some((self.now + 1 + self.random.below(HELD), packet));
                } else {
                    (self.network).send(self.now, &mut self.random, side, &packet);
                }
                burst += 1;
                assert!(burst < 100_000, "side {side} never stops sending");
            }
            if let Some((_, acknowledgement)) = held.take_if(|(until, _)| *until <= self.now) {
                (self.network).send(self.now, &mut self.random, side, &acknowledgement);
            }
            self.sides[side].take_events();
        }
    }

    /// The time of the next action, arrival or deadline.
    fn next_time(&self) -> Option<u64> {
        let sides = self.sides.iter().flat_map(|side| {
            let action = side.actions.first_key_value().map(|((time, _), _)| *time);
            let held = side.held.as_ref().map(|(until, _)| *until);
            [action, side.connection.next_deadline(), held]
        });
        sides.chain([self.network.next_arrival()]).flatten().min()
    }

    /// Runs until nothing more happens, or until `end`.
    pub(crate) fn run_until(&mut self, end: u64) {
        for _ in 0..1_000_000 {
            self.transmit();
            let Some(time) = self.next_time().filter(|time| *time <= end) else {
                self.now = self.now.max(end);
                return;
            };
            self.now = self.now.max(time);
            while self
                .network
                .next_arrival()
                .is_some_and(|time| time <= self.now)
            {
                if let Some((to, bytes)) = self.network.arrive() {
                    self.deliver(to, &bytes);
                }
            }
            for side in &mut self.sides {
                side.act(self.now);
                side.connection.advance(self.now);
                let next = side.connection.next_deadline();
                assert!(next.is_none_or(|next| next > self.now));
                side.take_events();
            }
        }
        panic!("the sides never become idle");
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let Side {
            connection,
            program,
            ..
        } = &mut self.sides[to];
        let packet = Packet::decode(bytes).unwrap();
        connection.receive(self.now, program, &packet);
        self.sides[to].take_events();
        while self.sides[to].connection.may_receive_kept() {
            let Side {
                connection,
                program,
                ..
            } = &mut self.sides[to];
            assert!(connection.receive_kept(self.now, program));
            self.sides[to].take_events();
        }
    }

    /// Runs until nothing more happens, for an hour at most.
    pub(crate) fn run(&mut self) {
        self.run_until(self.now + 3_600_000_000_000);
        assert_eq!(self.next_time(), None, "the sides never become idle");
    }

    /// The statuses of a side's requests, in order.
    pub(crate) fn statuses(&self, side: usize) -> Vec<Status> {
        let completed = self.sides[side].completed.iter();
        completed.map(|(_, status)| *status).collect()
    }
}

/// The attributes of two queue pairs with these first PSNs.
pub(crate) fn configs(a: Psn, b: Psn) -> [Config; 2] {
    [Config::reliable(0xb, a, b), Config::reliable(0xa, b, a)]
}

pub(crate) fn send(id: u64, length: usize) -> WorkRequest {
    let operation = Operation::Send {
        immediate: None,
        invalidate: None,
    };
    WorkRequest::new(id, operation, length as u32)
}

pub(crate) fn write(id: u64, target: Target, length: usize) -> WorkRequest {
    let operation = Operation::Write {
        target,
        immediate: None,
    };
    WorkRequest::new(id, operation, length as u32)
}

pub(crate) fn read(id: u64, target: Target, length: usize) -> WorkRequest {
    WorkRequest::new(id, Operation::Read { target }, length as u32)
}
