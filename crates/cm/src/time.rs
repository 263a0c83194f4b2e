//! Time codes. A code `t` stands for 4.096 µs · 2^t; like Linux, we compute 2^(t-8) ms.

/// A time or a duration in nanoseconds. The host's clock must be monotonic.
pub type Nanos = u64;

const MS: Nanos = 1_000_000;

/// The maximum response time that a peer can request (unless ours is longer), and the maximum ACK timeout: 4.096 s.
const MAX_RESPONSE: u8 = 20;
/// The longest service time that a peer can announce with an MRA: 65 s.
pub(crate) const MAX_SERVICE: u8 = 24;
/// How far a peer's response time may be below our own setting, in time codes, so that no peer makes us retransmit
/// messages in a burst.
const MAX_SHORTENING: u8 = 4;

/// Response times, and how often messages are retransmitted. With the defaults, which are those of `rdma_cm`, a peer that
/// does not answer is reported unreachable after 98 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a side may take to answer, as a time code.
    pub response: u8,
    /// How many times a message is retransmitted, at most 15.
    pub retries: u8,
    /// The service timeout in our MRAs, as a time code.
    pub service: u8,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            response: 20,
            retries: 15,
            service: 24,
        }
    }
}

impl Timing {
    /// Limits a response time that a peer requests.
    pub(crate) fn bounded(&self, code: u8) -> u8 {
        let least = self.response.saturating_sub(MAX_SHORTENING);
        code.clamp(least, MAX_RESPONSE.max(self.response))
    }

    /// The time until a REQ is retransmitted: a round trip and the peer's response time.
    pub(crate) fn request(&self, ack_timeout: u8) -> Nanos {
        let life = ack_timeout.min(MAX_RESPONSE).saturating_sub(1);
        2 * nanos(life) + nanos(self.response)
    }
}

/// The duration of a time code.
pub(crate) const fn nanos(code: u8) -> Nanos {
    let code = if code > 31 { 31 } else { code };
    match code {
        0..=8 => MS,
        _ => MS << (code - 8),
    }
}

/// How long a connection stays in time wait, given the local ACK timeout of its path.
pub(crate) fn time_wait(ack_timeout: u8) -> Nanos {
    nanos(ack_timeout.min(MAX_RESPONSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux's intervals, as captured on a network.
    #[test]
    fn retransmissions_have_the_intervals_of_linux() {
        let timing = Timing::default();
        assert_eq!(timing.request(19), 6144 * MS);
        assert_eq!(nanos(timing.bounded(20)), 4096 * MS);
        assert_eq!(time_wait(19), 2048 * MS);
        let sendings = u64::from(timing.retries) + 1;
        assert_eq!(sendings * timing.request(19) / 1_000_000_000, 98);
    }

    #[test]
    fn timeouts_that_the_peer_sets_are_bounded() {
        let timing = Timing::default();
        assert_eq!(timing.bounded(0), 16);
        assert_eq!(timing.bounded(31), 20);
        assert_eq!(time_wait(31), 4096 * MS);
        assert_eq!((nanos(0), nanos(255)), (MS, MS << 23));
    }
}
