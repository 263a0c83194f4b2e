//! One end of a stream rsocket with a hostile peer, and a program that sends and reads, driven by a script of bytes. Also the headers
//! of datagram rsockets.
//!
//! Whatever the peer sends, the end reads only inside its rings, and has no more writes outstanding than its send queue has room for.

use rdmacm::rsocket::datagram::header::{self, OverUdp};
use rdmacm::rsocket::stream::{CONTROLS, Shutdown, Sizes, Source, Stream, Work, Write};
use rdmacm::rsocket::wire::{Iomap, Message, Offer, RemoteSge};
use std::collections::VecDeque;
use std::net::IpAddr;

const SIZES: Sizes = Sizes {
    send_requests: 8,
    credits: 8,
    send_bytes: 256,
    receive_bytes: 256,
    iomaps: 2,
};
const RING: RemoteSge = RemoteSge {
    addr: 1 << 20,
    key: 7,
    len: SIZES.receive_bytes,
};

/// Decodes the headers of a datagram: over UDP, and between queue pairs.
pub fn datagram(bytes: &[u8]) {
    if let Some(datagram) = OverUdp::decode(bytes) {
        let again = datagram.encode(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(OverUdp::decode(&again), Some(datagram));
    }
    if let Some((from, len)) = header::sender(bytes) {
        assert!(len <= bytes.len() && len <= header::LEN_MAX);
        let again = header::between(from);
        assert_eq!(header::sender(&again), Some((from, again.len())));
    }
    if let Some(route) = bytes.first_chunk() {
        let _ = header::origin(route);
    }
}

/// An end, and its writes that have not completed.
struct End {
    stream: Stream,
    outstanding: VecDeque<Work>,
}

impl End {
    /// Posts a write of the stream.
    fn post(&mut self, write: &Write) {
        match write.source {
            Source::Ring { at, len } => {
                assert!(len > 0 && at + len <= SIZES.send_bytes, "{write:?}");
            }
            Source::Target(_) | Source::Iomap(_) | Source::Nothing => {}
        }
        self.outstanding.push_back(write.work);
        let most = (SIZES.send_requests + CONTROLS) as usize;
        assert!(self.outstanding.len() <= most, "too many writes");
    }

    /// Reads up to `most` bytes, as a program does.
    fn read(&mut self, most: u32) {
        let mut done = 0;
        while let Some((at, len)) = self.stream.peek(done, (most - done) as usize) {
            assert!(at + len <= SIZES.receive_bytes, "{len} bytes at {at}");
            done += len;
        }
        self.stream.consume(done);
    }
}

/// Runs a script: the private data of a connection, then steps.
pub fn stream(bytes: &[u8]) {
    let (private_data, mut rest) = bytes.split_at(bytes.len().min(Offer::SIZE));
    let Ok(offer) = Offer::decode(private_data) else {
        return;
    };
    assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
    let mut end = End {
        stream: Stream::new(&SIZES, RING, &offer),
        outstanding: VecDeque::new(),
    };
    while let Some((&step, next)) = rest.split_first() {
        rest = next;
        let argument = u32::from(rest.first().copied().unwrap_or(0));
        match step % 8 {
            0 | 1 => {
                let Some((immediate, next)) = rest.split_first_chunk::<4>() else {
                    return;
                };
                rest = next;
                let record = rest.first_chunk::<16>().copied().unwrap_or_default();
                let word = |at: usize| {
                    let word = record[at..].first_chunk().copied();
                    u64::from_le_bytes(word.unwrap_or_default())
                };
                let target = |_| RemoteSge::from_words([word(0), word(8)]);
                let taken = end.stream.received(u32::from_le_bytes(*immediate), target);
                if taken.is_err() {
                    end.stream.end();
                }
            }
            2 => {
                if let Some(work) = end.outstanding.pop_front() {
                    end.stream.completed(work);
                }
            }
            3 => end.read(argument),
            4 => {
                if let Some(write) = end.stream.send(argument as usize) {
                    end.post(&write);
                }
            }
            5 => {
                let to = RemoteSge {
                    addr: 4096,
                    key: 3,
                    len: argument,
                };
                if let Some(write) = end.stream.send_to(to) {
                    end.post(&write);
                }
            }
            6 => {
                let area = Iomap::default();
                if let Some(write) = end.stream.map((argument % 3) as u16, area) {
                    end.post(&write);
                }
            }
            _ => end.stream.shut(match argument % 64 {
                0 => Shutdown::Both,
                1 => Shutdown::Read,
                2 => Shutdown::Write,
                _ => continue,
            }),
        }
        while let Some(write) = end.stream.due() {
            end.post(&write);
        }
        assert!(end.stream.waiting() <= SIZES.receive_bytes);
    }
}

/// Scripts that begin with valid private data, and datagrams.
pub fn samples() -> Vec<Vec<u8>> {
    let offer = Offer {
        credits: SIZES.credits,
        iomaps: SIZES.iomaps,
        targets: RemoteSge {
            addr: 1 << 10,
            key: 1,
            len: 2,
        },
        first: RemoteSge {
            addr: 1 << 20,
            key: 2,
            len: SIZES.receive_bytes / 2,
        },
    };
    let mut random = crate::mutate::Random::new(3);
    let mut script = |messages: &[Message]| {
        let mut script = offer.encode().to_vec();
        for _ in 0..40 {
            for message in messages {
                script.push(0);
                script.extend(message.encode().to_le_bytes());
                script.extend([2, 3, 100]);
                script.extend((0..4).map(|_| random.draw() as u8));
            }
        }
        script
    };
    let from = IpAddr::from([127, 0, 0, 1]);
    let data = OverUdp {
        qpn: 0x1234,
        data: Some(b"data"),
    };
    let announcement = OverUdp { data: None, ..data };
    vec![
        script(&[Message::Data(16), Message::Credits(9), Message::KeepAlive]),
        script(&[Message::Data(100), Message::Iomap(1), Message::Credits(12)]),
        script(&[Message::Data(1), Message::Shutdown, Message::Disconnect]),
        data.encode(from),
        announcement.encode(from),
        data.encode([0; 16].into()),
        header::between((from, 4711).into()),
        header::between(("::1".parse::<IpAddr>().unwrap_or(from), 4711).into()),
    ]
}
