//! The effects of one side's requests on the other side, computed in order and without a network.

use crate::network::Random;
use crate::program::{BASE, EXPOSED, KEY, result};
use rkey_roce::transport::{Atomic, Operation, Target, WorkRequest};
use std::ops::Range;

/// A message that the other side receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) length: u32,
    pub(crate) is_write: bool,
    pub(crate) immediate: Option<u32>,
    pub(crate) invalidated: Option<u32>,
    pub(crate) solicited: bool,
}

/// The requests of one side and their effects.
pub(crate) struct Model {
    /// The other side's exposed memory before each request, and after the last one.
    pub(crate) states: Vec<Vec<u8>>,
    pub(crate) requests: Vec<WorkRequest>,
    /// The memory of each request: initially, and finally if it succeeds.
    pub(crate) memory: Vec<(Vec<u8>, Vec<u8>)>,
    /// The messages, each with the index of its request.
    pub(crate) messages: Vec<(usize, Message)>,
    pub(crate) invalidated: Vec<u32>,
    /// Ranges being read since the last fence.
    reading: Vec<Range<usize>>,
}

/// The maximum length of a message, in bytes.
pub(crate) const MAX_LEN: usize = 6000;

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            states: vec![vec![0; EXPOSED]],
            requests: Vec::new(),
            memory: Vec::new(),
            messages: Vec::new(),
            invalidated: Vec::new(),
            reading: Vec::new(),
        }
    }

    /// Adds a random request.
    pub(crate) fn add(&mut self, random: &mut Random, reliable: bool) {
        let id = self.requests.len() as u64;
        let scale = [1, 64, 1500, MAX_LEN as u64][random.below(4) as usize];
        let length = random.below(scale + 1) as usize;
        let place = random.below((EXPOSED - length) as u64 + 1) as usize;
        let kinds = if reliable { 5 } else { 2 };
        match random.below(kinds) {
            0 => self.send(random, id, length, reliable),
            1 => self.write(random, id, place, length),
            2 | 3 => self.read(random, id, place, length),
            _ => self.atomic(random, id),
        }
        let request = self.requests.last_mut().unwrap();
        request.solicited = random.happens(20);
        if let Some((index, message)) = self.messages.last_mut()
            && *index as u64 == id
        {
            message.solicited = request.solicited;
        }
    }

    fn push(&mut self, request: WorkRequest, before: Vec<u8>, after: Vec<u8>, state: Vec<u8>) {
        self.requests.push(request);
        self.memory.push((before, after));
        self.states.push(state);
    }

    fn now(&self) -> Vec<u8> {
        self.states.last().unwrap().clone()
    }

    fn message(&mut self, bytes: Vec<u8>, length: usize, is_write: bool, immediate: Option<u32>) {
        let message = Message {
            bytes,
            length: length as u32,
            is_write,
            immediate,
            invalidated: None,
            solicited: false,
        };
        self.messages.push((self.requests.len(), message));
    }

    fn send(&mut self, random: &mut Random, id: u64, length: usize, reliable: bool) {
        let bytes = random.bytes(length);
        let (mut immediate, mut invalidate) = (None, None);
        match random.below(3) {
            0 => immediate = Some(random.next() as u32),
            1 if reliable => invalidate = Some(random.next() as u32 | 1 << 31),
            _ => {}
        }
        self.message(bytes.clone(), length, false, immediate);
        self.messages.last_mut().unwrap().1.invalidated = invalidate;
        self.invalidated.extend(invalidate);
        let operation = Operation::Send {
            immediate,
            invalidate,
        };
        let request = WorkRequest::new(id, operation, length as u32);
        self.push(request, bytes.clone(), bytes, self.now());
    }

    fn write(&mut self, random: &mut Random, id: u64, place: usize, length: usize) {
        let bytes = random.bytes(length);
        let immediate = random.happens(30).then(|| random.next() as u32);
        if immediate.is_some() {
            self.message(Vec::new(), length, true, immediate);
        }
        let target = target(place);
        let mut request =
            WorkRequest::new(id, Operation::Write { target, immediate }, length as u32);
        request.fence = self.must_fence(random, place..place + length);
        let mut state = self.now();
        state[place..place + length].copy_from_slice(&bytes);
        self.push(request, bytes.clone(), bytes, state);
    }

    fn read(&mut self, random: &mut Random, id: u64, place: usize, length: usize) {
        let state = self.now();
        let mut request = WorkRequest::new(
            id,
            Operation::Read {
                target: target(place),
            },
            length as u32,
        );
        request.fence = self.must_fence(random, 0..0);
        self.reading.push(place..place + length);
        let data = state[place..place + length].to_vec();
        self.push(request, vec![0xee; length], data, state);
    }

    fn atomic(&mut self, random: &mut Random, id: u64) {
        let place = 8 * random.below(4) as usize;
        let mut state = self.now();
        let old = u64::from_ne_bytes(state[place..place + 8].try_into().unwrap());
        let operation = match random.below(3) {
            0 => Atomic::CompareSwap {
                compare: old,
                swap: random.next(),
            },
            1 => Atomic::CompareSwap {
                compare: !old,
                swap: random.next(),
            },
            _ => Atomic::FetchAdd { add: random.next() },
        };
        let new = result(operation, old);
        state[place..place + 8].copy_from_slice(&new.to_ne_bytes());
        let target = target(place);
        let mut request = WorkRequest::new(id, Operation::Atomic { target, operation }, 8);
        request.fence = self.must_fence(random, place..place + 8);
        self.push(request, vec![0xee; 8], old.to_ne_bytes().to_vec(), state);
    }

    /// Whether a request that changes the range must wait for reads: without a fence, a read may see the change (IBA volume
    /// 1, 10.8.3.3). Some others wait, too.
    fn must_fence(&mut self, random: &mut Random, changed: Range<usize>) -> bool {
        let overlaps = |read: &Range<usize>| read.start < changed.end && changed.start < read.end;
        let fence = self.reading.iter().any(overlaps) || random.happens(10);
        if fence {
            self.reading.clear();
        }
        fence
    }

    /// Whether memory is consistent with at least `done` executed requests: the effects of some number of requests, in order,
    /// and perhaps a part of those of the next one.
    pub(crate) fn explains(&self, memory: &[u8], done: usize) -> bool {
        self.states[done..].windows(2).any(|two| {
            let mut bytes = memory.iter().zip(two[0].iter().zip(&two[1]));
            bytes.all(|(now, (before, after))| now == before || now == after)
        }) || self.states.last().unwrap() == memory
    }
}

pub(crate) fn target(place: usize) -> Target {
    Target {
        address: BASE + place as u64,
        rkey: KEY,
    }
}
