//! A device without a provider, with which tests connect to endpoints like a peer, and then send arbitrary bytes.

use crate::harness::*;
use rkey_device::base::VaRange;
use rkey_device::core::{Access, DomainId, LKey, RegionSpec};
use rkey_device::engine::{
    Completion, QpState, RecvRequest, SendFlags, SendRequest, Sge, Status, Work,
};
use rkey_device::{Config, Cq, Device, DeviceError, Incoming, Listener, Qp, QpOptions};
use rkey_fi::fuzzing;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// The longest message that it sends.
const LONGEST: u32 = 4096;
/// Memory for receives.
const ROOM: usize = 1 << 15;

/// The device, its memory and its address.
pub(crate) struct Outsider {
    device: Device,
    listener: Listener,
    domain: DomainId,
    key: LKey,
    memory: Box<[u8]>,
}

/// A connection.
pub(crate) struct Line {
    cq: Cq,
    qp: Qp,
}

impl Outsider {
    pub(crate) fn open() -> Self {
        let mut config = Config::from_env().unwrap();
        // An unresponsive peer is noticed after six times 34 ms.
        config.set("RKEY_TIMEOUT", "13").unwrap();
        config.set("RKEY_MAX_INLINE", &LONGEST.to_string()).unwrap();
        let device = Device::open(config).unwrap();
        let listener = device.listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let domain = device.create_domain().unwrap();
        let memory = vec![0; ROOM].into_boxed_slice();
        let ranges = [VaRange::new(memory.as_ptr() as u64, ROOM as u64).unwrap()];
        let spec = RegionSpec::new(domain, &ranges, Access::LOCAL_WRITE);
        // SAFETY: the memory lives as long as the device, and nothing reads it.
        let region = unsafe { device.register(&spec) }.unwrap();
        Self {
            device,
            listener,
            domain,
            key: region.local_key,
            memory,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// The name with which an endpoint finds it.
    pub(crate) fn name(&self) -> Vec<u8> {
        name_at(self.address().port())
    }

    /// The first message of an endpoint here that connects to `there`.
    pub(crate) fn hello(&self, there: SocketAddr) -> Vec<u8> {
        fuzzing::asks(self.address(), self.device.node(), there.port())
    }

    /// The first message of an endpoint that wants this receive context, and perhaps only sends.
    pub(crate) fn hello_for(&self, there: SocketAddr, context: u8, one_way: bool) -> Vec<u8> {
        let to = (there.port(), context);
        fuzzing::asks_for(self.address(), self.device.node(), to, one_way)
    }

    /// Its answer to a peer that connects.
    pub(crate) fn answer(&self, incoming: &Incoming) -> Vec<u8> {
        let asked = &incoming.peer().private_data;
        fuzzing::answers(self.address(), self.device.node(), asked).expect("a hello")
    }

    /// A peer that requests a connection here.
    pub(crate) fn caller(&self, patience: Duration) -> Option<Incoming> {
        self.listener.accept(Some(patience)).ok()
    }

    /// Connects, and receives up to `receives` messages.
    pub(crate) fn connect(
        &self,
        to: SocketAddr,
        hello: &[u8],
        receives: u64,
    ) -> Result<Line, DeviceError> {
        let line = self.line();
        self.device.connect(to, &[&line.qp], hello, PATIENCE)?;
        self.receive(&line, receives);
        Ok(line)
    }

    /// Accepts a peer's request, and receives up to `receives` messages.
    pub(crate) fn accept(
        &self,
        incoming: Incoming,
        answer: &[u8],
        receives: u64,
    ) -> Result<Line, DeviceError> {
        let line = self.line();
        incoming.accept(&[&line.qp], answer)?;
        self.receive(&line, receives);
        Ok(line)
    }

    fn line(&self) -> Line {
        let cq = self.device.create_cq(1024, None).unwrap();
        let options = QpOptions {
            max_send: 256,
            max_recv: 256,
            max_inline: LONGEST,
            ..QpOptions::new(self.domain, &cq)
        };
        let qp = self.device.create_qp(&options).unwrap();
        Line { cq, qp }
    }

    fn receive(&self, line: &Line, receives: u64) {
        let sges = [Sge {
            addr: self.memory.as_ptr() as u64,
            len: ROOM as u32,
            key: self.key,
        }];
        for id in 0..receives {
            // A connection that is closed at once receives none.
            let _ = line.qp.post_recv(&RecvRequest { id, sges: &sges });
        }
    }
}

impl Line {
    /// Sends several messages and waits until they have arrived, while the other side makes progress; `false`
    /// if the connection has ended.
    pub(crate) fn says(&self, messages: &[Vec<u8>], progress: impl Fn()) -> bool {
        let send = Work::Send {
            imm: None,
            invalidate: None,
        };
        for bytes in messages {
            let request = SendRequest {
                inline: Some(bytes),
                flags: SendFlags::SIGNALED,
                ..SendRequest::new(7, send, &[])
            };
            if self.qp.post_send(&request).is_err() {
                return false;
            }
        }
        let started = Instant::now();
        let (mut arrived, mut one) = (0, [Completion::default()]);
        while arrived < messages.len() {
            if self.cq.poll(&mut one).unwrap() == 1 {
                if one[0].status != Status::Success {
                    return false;
                }
                arrived += usize::from(!one[0].opcode.is_recv());
                continue;
            }
            if self.qp.query().unwrap().state == QpState::Error {
                return false;
            }
            progress();
            assert!(started.elapsed() < PATIENCE, "{messages:02x?} hangs");
            std::thread::yield_now();
        }
        true
    }

    /// Whether a message has arrived.
    pub(crate) fn has_heard(&self) -> bool {
        let mut one = [Completion::default()];
        let count = self.cq.poll(&mut one).unwrap();
        count == 1 && one[0].opcode.is_recv() && one[0].status == Status::Success
    }
}
