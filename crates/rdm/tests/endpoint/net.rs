//! A network in memory: queue pairs whose requests execute one at a time, when the test decides.

#![allow(unsafe_code)]
// UNSAFETY: the network reads and writes memory by address.

use rkey_base::memory::{Memory, ProcessMemory};
use rkey_core::RKey;
use rkey_engine::{Completion, CompletionOp, SendRequest, Sge, Status, Work};
use rkey_rdm::error::{Error, Result};
use rkey_rdm::limits::{BUFFERS, SENDS};
use std::collections::{HashMap, VecDeque};

/// Copies the bytes out of scatter/gather entries.
pub(crate) fn gather(sges: &[Sge]) -> Vec<u8> {
    // SAFETY: endpoints and tests keep alive all memory that they have passed to the network.
    let memory = unsafe { ProcessMemory::new() };
    let mut all = Vec::new();
    for sge in sges {
        let start = all.len();
        all.resize(start + sge.len as usize, 0);
        memory.load_bytes(&mut all[start..], sge.addr).unwrap();
    }
    all
}

/// Copies bytes into scatter/gather entries; bytes that do not fit are dropped.
pub(crate) fn scatter(sges: &[Sge], mut bytes: &[u8]) {
    // SAFETY: endpoints and tests keep alive all memory that they have passed to the network.
    let memory = unsafe { ProcessMemory::new() };
    for sge in sges {
        let (now, rest) = bytes.split_at(bytes.len().min(sge.len as usize));
        memory.store_bytes(sge.addr, now).unwrap();
        bytes = rest;
    }
}

/// A posted request.
struct Request {
    id: u64,
    work: Work,
    copied: Vec<u8>,
    sges: Vec<Sge>,
}

/// A queue pair.
struct Qp {
    node: usize,
    peer: usize,
    requests: VecDeque<Request>,
    broken: bool,
}

/// A message or a completion at a node.
pub(crate) struct Completed {
    pub(crate) completion: Completion,
    pub(crate) bytes: Vec<u8>,
}

/// A node's part of the network.
pub(crate) struct Device {
    pub(crate) completed: VecDeque<Completed>,
    pub(crate) buffers: u32,
    pub(crate) alive: bool,
    /// How many of its queue pairs have lost a peer that exited.
    pub(crate) gone: u32,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            completed: VecDeque::new(),
            buffers: BUFFERS,
            alive: true,
            gone: 0,
        }
    }
}

/// All queue pairs, and the memory that peers may access.
#[derive(Default)]
pub(crate) struct Net {
    qps: Vec<Qp>,
    pub(crate) devices: Vec<Device>,
    /// Address and length, by key.
    regions: HashMap<u32, (u64, u32)>,
    next_key: u32,
}

impl Net {
    /// Two queue pairs that are connected.
    pub(crate) fn pair(&mut self, a: usize, b: usize) -> (usize, usize) {
        let first = self.qps.len();
        for (node, peer) in [(a, first + 1), (b, first)] {
            self.qps.push(Qp {
                node,
                peer,
                requests: VecDeque::new(),
                broken: false,
            });
        }
        (first, first + 1)
    }

    pub(crate) fn is_broken(&self, qp: usize) -> bool {
        self.qps[qp].broken
    }

    pub(crate) fn expose(&mut self, addr: u64, len: u32) -> u32 {
        self.next_key += 1;
        self.regions.insert(self.next_key, (addr, len));
        self.next_key
    }

    pub(crate) fn withdraw(&mut self, key: u32) {
        self.regions.remove(&key);
    }

    pub(crate) fn exposed(&self) -> usize {
        self.regions.len()
    }

    pub(crate) fn post(&mut self, qp: usize, request: &SendRequest<'_>) -> Result<()> {
        let it = &mut self.qps[qp];
        if it.requests.len() >= SENDS as usize {
            return Err(Error::Again);
        }
        let mut copied = request.prefix.to_vec();
        copied.extend_from_slice(request.inline.unwrap_or_default());
        it.requests.push_back(Request {
            id: request.id,
            work: request.work,
            copied,
            sges: request.sges.to_vec(),
        });
        Ok(())
    }

    /// Fails a queue pair and its peer's. Posted requests complete as flushed.
    pub(crate) fn fail(&mut self, qp: usize) {
        for qp in [qp, self.qps[qp].peer] {
            self.qps[qp].broken = true;
        }
    }

    /// Ends a process.
    pub(crate) fn kill(&mut self, node: usize) {
        self.devices[node].alive = false;
        for qp in 0..self.qps.len() {
            if self.qps[qp].node == node && !self.qps[qp].broken {
                let peer = self.qps[self.qps[qp].peer].node;
                self.devices[peer].gone += 1;
                self.fail(qp);
            }
        }
    }

    /// Queue pairs whose oldest request can be executed now.
    pub(crate) fn runnable(&self) -> Vec<usize> {
        let can = |&qp: &usize| {
            let it = &self.qps[qp];
            let to = &self.devices[self.qps[it.peer].node];
            let takes = match it.requests.front() {
                None => return false,
                Some(request) => takes_receive(&request.work),
            };
            self.devices[it.node].alive && (it.broken || !takes || to.buffers > 0)
        };
        (0..self.qps.len()).filter(can).collect()
    }

    /// The number of the queue pair, and the message, that [`Self::run`] would deliver.
    pub(crate) fn next_message(&self, qp: usize) -> Option<(usize, usize, Vec<u8>)> {
        let it = &self.qps[qp];
        let request = it.requests.front().filter(|_| !it.broken)?;
        let Work::Send { .. } = request.work else {
            return None;
        };
        let mut bytes = request.copied.clone();
        bytes.extend(gather(&request.sges));
        Some((self.qps[it.peer].node, it.peer, bytes))
    }

    /// Completes the oldest request, whose message bypassed the buffers.
    pub(crate) fn skip(&mut self, qp: usize) {
        if let Some(request) = self.qps[qp].requests.pop_front() {
            self.complete(qp, &request, Status::Success);
        }
    }

    /// Executes the oldest request of a queue pair.
    pub(crate) fn run(&mut self, qp: usize) {
        let Some(request) = self.qps[qp].requests.pop_front() else {
            return;
        };
        let status = match self.qps[qp].broken {
            true => Status::Flushed,
            false => self.carry_out(qp, &request),
        };
        self.complete(qp, &request, status);
    }

    fn complete(&mut self, qp: usize, request: &Request, status: Status) {
        let opcode = match request.work {
            Work::Read { .. } => CompletionOp::Read,
            Work::Write { .. } => CompletionOp::Write,
            _ => CompletionOp::Send,
        };
        let completion = Completion {
            id: request.id,
            status,
            opcode,
            qpn: qp as u32,
            ..Completion::default()
        };
        self.arrive(self.qps[qp].node, completion, Vec::new());
    }

    fn arrive(&mut self, node: usize, completion: Completion, bytes: Vec<u8>) {
        let completed = Completed { completion, bytes };
        self.devices[node].completed.push_back(completed);
    }

    fn region(&self, key: RKey, addr: u64, len: usize) -> Option<Sge> {
        let RKey::Device(key) = key else {
            return None;
        };
        let &(base, whole) = self.regions.get(&key.0)?;
        let inside = addr as usize + len <= whole as usize;
        inside.then(|| sge(base + addr, len))
    }

    fn carry_out(&mut self, qp: usize, request: &Request) -> Status {
        let peer = self.qps[qp].peer;
        let node = self.qps[peer].node;
        let len: u32 = request.sges.iter().map(|sge| sge.len).sum();
        let received = |opcode, bytes, imm| Completion {
            opcode,
            bytes,
            imm,
            qpn: peer as u32,
            ..Completion::default()
        };
        match request.work {
            Work::Send { .. } => {
                let mut bytes = request.copied.clone();
                bytes.extend(gather(&request.sges));
                self.devices[node].buffers -= 1;
                let completion = received(CompletionOp::Recv, bytes.len() as u32, 0);
                self.arrive(node, completion, bytes);
            }
            Work::Read { remote } => {
                let Some(there) = self.region(remote.key, remote.addr, len as usize) else {
                    return Status::RemoteAccess;
                };
                scatter(&request.sges, &gather(&[there]));
            }
            Work::Write { remote, imm } => {
                let Some(there) = self.region(remote.key, remote.addr, len as usize) else {
                    return Status::RemoteAccess;
                };
                scatter(&[there], &gather(&request.sges));
                if let Some(imm) = imm {
                    self.devices[node].buffers -= 1;
                    let completion = received(CompletionOp::RecvWriteImm, len, imm);
                    self.arrive(node, completion, Vec::new());
                }
            }
            _ => return Status::LocalQpOperation,
        }
        Status::Success
    }
}

fn takes_receive(work: &Work) -> bool {
    matches!(work, Work::Send { .. } | Work::Write { imm: Some(_), .. })
}

/// The test's memory, which needs no region.
pub(crate) fn sge(addr: u64, len: usize) -> Sge {
    Sge {
        addr,
        len: len as u32,
        key: rkey_core::LKey(1),
    }
}
