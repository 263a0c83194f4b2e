//! Endpoints, the network between them, and a clock: all in one thread. A test, or a random choice,
//! decides what happens next.

use crate::host::{Exposed, Op, Shared, SimHost, Told};
use crate::net::{Device, Net, scatter, sge};
use core::net::SocketAddr;
use rkey_base::shared::PeerBytes;
use rkey_engine::Sge;
use rkey_rdm::endpoint::{Endpoint, Outgoing, PayloadSource, Receive, Service, ShortMessage};
use rkey_rdm::error::{Error, Result};
use rkey_rdm::header::{Header, Kind};
use rkey_rdm::matching::Pattern;
use rkey_rdm::operation_id::{Form, Plain};
use smallvec::smallvec;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How many completions a node takes in one poll.
const LOOK: usize = 8;
/// How much time passes when nothing else happens.
const TICK: Duration = Duration::from_millis(60);

/// An endpoint and its host.
pub(crate) struct Node {
    pub(crate) ep: Endpoint<SimHost>,
    pub(crate) host: SimHost,
    /// Connections from peers that are not ready yet.
    accepting: Vec<usize>,
    gone: u32,
    /// Whether its connections are one-way.
    pub(crate) only_sends: bool,
}

/// Something that can happen.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The oldest request of a queue pair is executed.
    Run(usize),
    /// The oldest request of a queue pair is executed as a message that bypasses the buffers, if the endpoint takes it.
    Direct(usize),
    /// A node takes completions.
    Look(usize),
    /// A connection that a node has requested is made.
    Connect(usize),
    /// A connection that a node has accepted is ready.
    Ready(usize),
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) net: Rc<RefCell<Net>>,
    pub(crate) nodes: Vec<Node>,
    /// The memory of messages.
    memory: Vec<Box<[u8]>>,
    /// The buffer of each receive.
    buffers: Vec<(usize, usize)>,
    sent: usize,
    /// Whether messages and receives go through the express lane, if it takes them.
    pub(crate) lane: bool,
}

/// The bytes of a message of a test.
struct Bytes<'a> {
    host: &'a SimHost,
    bytes: &'a [u8],
    sges: [Sge; 1],
}

impl PayloadSource<SimHost> for Bytes<'_> {
    fn sges(&self) -> &[Sge] {
        &self.sges[..usize::from(!self.bytes.is_empty())]
    }
    fn copy(&self, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(self.bytes);
        Ok(())
    }
    fn expose(&self) -> Result<(Exposed, u32)> {
        let (addr, len) = (self.bytes.as_ptr() as u64, self.bytes.len());
        Ok(self.host.expose_at(addr, len, Box::default()))
    }
}

/// How a message is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    pub(crate) tag: Option<u64>,
    pub(crate) inject: bool,
    pub(crate) confirm: bool,
}

/// The messages that a receive accepts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct From {
    pub(crate) node: Option<usize>,
    pub(crate) tag: Option<u64>,
    pub(crate) any_tag: bool,
}

pub(crate) fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], node as u16 + 1))
}

fn node_at(address: SocketAddr) -> usize {
    usize::from(address.port()) - 1
}

/// The bytes of message `id`.
pub(crate) fn content(id: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (id * 31 + at * 7) as u8).collect()
}

impl World {
    pub(crate) fn new(nodes: usize, service: Service) -> Self {
        Self::with(nodes, service, None)
    }

    /// The endpoints that share their receives, if any.
    pub(crate) fn with(nodes: usize, service: Service, shared: Option<Shared>) -> Self {
        let net = Rc::<RefCell<Net>>::default();
        let node = |_| {
            net.borrow_mut().devices.push(Device::default());
            Node {
                ep: Endpoint::new(service),
                host: SimHost::new(Rc::clone(&net), shared.clone()),
                accepting: Vec::new(),
                gone: 0,
                only_sends: false,
            }
        };
        let nodes = (0..nodes).map(node).collect();
        Self {
            now: Instant::now(),
            net,
            nodes,
            memory: Vec::new(),
            buffers: Vec::new(),
            sent: 0,
            lane: false,
        }
    }

    pub(crate) fn is_alive(&self, node: usize) -> bool {
        self.net.borrow().devices[node].alive
    }

    /// Sends the next message; returns its number. Its bytes are [`content`].
    pub(crate) fn try_send(
        &mut self,
        from: usize,
        to: usize,
        len: usize,
        how: How,
    ) -> Result<usize> {
        let Node { ep, host, .. } = &mut self.nodes[from];
        let peer = ep.routes_mut().peer_at(address(to));
        let connection = ep.connection_to(host, peer, || Some(0), || self.now)?;
        if !ep.outbox().has_room(connection, 1) {
            return Err(Error::Again);
        }
        let id = self.sent;
        let bytes = content(id, len).into_boxed_slice();
        let body = Bytes {
            host,
            bytes: &bytes,
            sges: [sge(bytes.as_ptr() as u64, len)],
        };
        let form = match how.tag {
            Some(_) => Form::Tagged,
            None => Form::Message,
        };
        let plain = Plain {
            context: id,
            form,
            report: true,
        };
        let short = ShortMessage {
            connection,
            id: plain.number().unwrap(),
            tag: how.tag,
            data: Some(id as u64),
            sge: body.sges[0],
        };
        if self.lane && !how.confirm && ep.send_short(host, &short) {
            self.sent += 1;
            self.memory.push(bytes);
            return Ok(id);
        }
        let outgoing = Outgoing {
            connection,
            header: Header {
                tagged: how.tag.is_some(),
                has_data: true,
                confirm: how.confirm,
                tag: how.tag.unwrap_or(0),
                data: id as u64,
                len: len as u32,
                ..Header::new(Kind::Message)
            },
            inject: how.inject,
            plain: Some(plain),
        };
        let form = Some(form);
        ep.send(host, &outgoing, &body, || Op { context: id, form })?;
        self.sent += 1;
        if !how.inject {
            self.memory.push(bytes);
        }
        Ok(id)
    }

    /// Like [`Self::try_send`], but retries until there is a connection.
    pub(crate) fn send(&mut self, from: usize, to: usize, len: usize, how: How) -> usize {
        loop {
            match self.try_send(from, to, len, how) {
                Ok(id) => return id,
                Err(Error::Again) => assert!(self.act(0), "no connection can be made"),
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    pub(crate) fn messages(&self) -> usize {
        self.sent
    }

    /// A receive into `len` bytes of new memory, and its number.
    pub(crate) fn receive_of(&mut self, len: usize, several: bool) -> (usize, Receive<SimHost>) {
        let id = self.buffers.len();
        self.buffers.push((self.memory.len(), len));
        let memory = vec![0u8; len].into_boxed_slice();
        let sges = smallvec![sge(memory.as_ptr() as u64, len)];
        self.memory.push(memory);
        (id, Receive::new(sges, len, several, id))
    }

    /// Posts a receive; returns its number.
    pub(crate) fn receive(&mut self, node: usize, from: From, len: usize) -> usize {
        let (id, receive) = self.receive_of(len, false);
        let Node { ep, host, .. } = &mut self.nodes[node];
        let (tagged, pattern) = (from.tag.is_some(), pattern(from));
        if self.lane && pattern.source.is_none() {
            let place = sge(self.memory[self.buffers[id].0].as_ptr() as u64, len);
            let accepts = (pattern.tag, pattern.ignore);
            if ep.receives_mut().post_short(tagged, accepts, place, id) {
                return id;
            }
        }
        ep.receive(host, tagged, pattern, receive);
        id
    }

    /// The contents of a receive's buffer.
    pub(crate) fn received(&self, receive: usize) -> Vec<u8> {
        let (index, len) = self.buffers[receive];
        crate::net::gather(&[sge(self.memory[index].as_ptr() as u64, len)])
    }

    /// A node's reports since the last call.
    pub(crate) fn told(&mut self, node: usize) -> Vec<Told> {
        self.nodes[node].host.told.take()
    }

    /// The acts that are possible now.
    fn agenda(&self) -> Vec<Act> {
        let net = self.net.borrow();
        let mut acts = Vec::new();
        for qp in net.runnable() {
            acts.push(Act::Run(qp));
            acts.push(Act::Direct(qp));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let device = &net.devices[index];
            if !device.alive {
                continue;
            }
            if !device.completed.is_empty() || device.gone != node.gone {
                acts.push(Act::Look(index));
            }
            if !node.host.connecting.borrow().is_empty() {
                acts.push(Act::Connect(index));
            }
            if !node.accepting.is_empty() {
                acts.push(Act::Ready(index));
            }
        }
        acts
    }

    /// Performs one of the possible acts; `false` if there are none.
    pub(crate) fn act(&mut self, choice: usize) -> bool {
        let agenda = self.agenda();
        if agenda.is_empty() {
            return false;
        }
        match agenda[choice % agenda.len()] {
            Act::Run(qp) => self.net.borrow_mut().run(qp),
            Act::Direct(qp) => self.run_directly(qp),
            Act::Look(node) => self.look(node),
            Act::Connect(node) => self.connect(node),
            Act::Ready(node) => {
                let Node {
                    ep,
                    host,
                    accepting,
                    ..
                } = &mut self.nodes[node];
                ep.accepted(host, accepting.remove(0));
            }
        }
        true
    }

    fn run_directly(&mut self, qp: usize) {
        let message = self.net.borrow().next_message(qp);
        if let Some((node, to, bytes)) = message {
            let idle = self.net.borrow().devices[node].completed.is_empty();
            let Node { ep, host, .. } = &mut self.nodes[node];
            let bytes = PeerBytes::from_slice(&bytes);
            let place = |sges: &[Sge], bytes: PeerBytes<'_>| {
                let mut copy = vec![0; bytes.len()];
                bytes.get(0, &mut copy);
                scatter(sges, &copy);
                Ok(())
            };
            if idle && ep.take_directly(host, to as u32, bytes, place).is_some() {
                return self.net.borrow_mut().skip(qp);
            }
        }
        self.net.borrow_mut().run(qp);
    }

    /// Makes the oldest connection that a node has requested.
    fn connect(&mut self, node: usize) {
        let (peer, there) = self.nodes[node].host.connecting.borrow_mut().remove(0);
        let to = node_at(there);
        if !self.is_alive(to) {
            let Node { ep, host, .. } = &mut self.nodes[node];
            return ep.connect_finished(host, peer, Err(Error::NotConnected), self.now);
        }
        let (ours, theirs) = self.net.borrow_mut().pair(node, to);
        let add = |it: &mut Node, qp: usize, peer: usize| {
            it.ep
                .outbox_mut()
                .add_connection(&it.host, qp, address(peer), ())
        };
        let index = add(&mut self.nodes[to], theirs, node);
        if self.nodes[node].only_sends {
            self.nodes[to].ep.outbox_mut().set_one_way(index);
        }
        self.nodes[to].accepting.push(index);
        let index = add(&mut self.nodes[node], ours, to);
        let Node { ep, host, .. } = &mut self.nodes[node];
        ep.connect_finished(host, peer, Ok(index), self.now);
    }

    /// Makes a node take completions and act on them.
    pub(crate) fn look(&mut self, node: usize) {
        let gone = self.net.borrow().devices[node].gone;
        self.take(node, LOOK);
        let Node { ep, host, .. } = &mut self.nodes[node];
        let due = !ep.is_at_rest(host) && ep.do_background_work(host, self.now);
        if due || gone != self.nodes[node].gone {
            self.nodes[node].gone = gone;
            let Node { ep, host, .. } = &mut self.nodes[node];
            let over = ep.outbox().broken(host);
            if !over.is_empty() {
                self.take(node, usize::MAX);
            }
            let Node { ep, host, .. } = &mut self.nodes[node];
            for connection in over {
                ep.lose(host, connection);
            }
        }
    }

    fn take(&mut self, node: usize, most: usize) {
        for _ in 0..most {
            let first = self.net.borrow_mut().devices[node].completed.pop_front();
            let Some(it) = first else { return };
            let Node { ep, host, .. } = &mut self.nodes[node];
            if it.completion.opcode.is_recv() {
                ep.receive_completed(host, &it.completion, &it.bytes);
                self.net.borrow_mut().devices[node].buffers += 1;
            } else {
                ep.request_completed(host, &it.completion);
            }
        }
    }

    /// Lets time pass, and lets every node make the progress that only time triggers.
    pub(crate) fn tick(&mut self) {
        self.now += TICK;
        for node in 0..self.nodes.len() {
            if self.is_alive(node) {
                self.look(node);
            }
        }
    }

    /// Performs all possible acts until none is left.
    pub(crate) fn settle(&mut self) {
        for _ in 0..40 {
            let mut choice = 0;
            while self.act(choice) {
                choice += 1;
            }
            self.tick();
        }
        assert!(self.agenda().is_empty());
    }

    /// Ends the process of a node.
    pub(crate) fn kill(&mut self, node: usize) {
        self.net.borrow_mut().kill(node);
    }
}

pub(crate) fn pattern(from: From) -> Pattern<SocketAddr> {
    Pattern {
        source: from.node.map(address),
        tag: from.tag.unwrap_or(0),
        ignore: if from.any_tag { u64::MAX } else { 0 },
    }
}
