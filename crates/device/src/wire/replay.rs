//! Which datagrams of which senders have arrived, so that a repeated one is recognised.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::cipher::SenderId;

/// How many numbers below the highest one are remembered. Networks reorder packets less than that.
const WINDOW: u64 = 4096;
const WORDS: usize = WINDOW as usize / 64;
/// How many senders of a host are remembered.
const SENDERS: usize = 1024;

/// The windows of all senders, by the address of their host. Only hosts that hold the key have entries.
#[derive(Debug, Default)]
pub(super) struct ReplayWindows {
    hosts: HashMap<IpAddr, Host>,
}

/// The senders of a host. Their ids begin with the time by the host's clock, so the smaller one is older.
#[derive(Debug, Default)]
struct Host {
    windows: HashMap<SenderId, Window>,
    /// The youngest sender that was forgotten. Unknown senders that are not younger are refused, because they may be forgotten ones.
    forgotten: Option<SenderId>,
    /// Counts the datagrams, to find the sender that has been silent for longest.
    clock: u64,
}

#[derive(Debug)]
struct Window {
    /// The highest number that has arrived.
    highest: u64,
    /// One bit for each of the [`WINDOW`] numbers up to `highest`, at the number modulo `WINDOW`.
    arrived: Box<[u64; WORDS]>,
    used: u64,
}

impl ReplayWindows {
    /// Records a number. `false` if it has arrived before, or is too old to tell.
    pub(super) fn is_new(&mut self, host: IpAddr, sender: SenderId, number: u64) -> bool {
        self.hosts.entry(host).or_default().is_new(sender, number)
    }
}

impl Host {
    fn is_new(&mut self, sender: SenderId, number: u64) -> bool {
        self.clock += 1;
        if let Some(window) = self.windows.get_mut(&sender) {
            window.used = self.clock;
            return window.take(number);
        }
        if self.forgotten.is_some_and(|it| sender <= it) {
            return false;
        }
        if self.windows.len() >= SENDERS {
            let silent = self.windows.iter().min_by_key(|(_, window)| window.used);
            if let Some(id) = silent.map(|(id, _)| *id) {
                self.windows.remove(&id);
                self.forgotten = self.forgotten.max(Some(id));
            }
        }
        let window = Window::from(number, self.clock);
        self.windows.insert(sender, window);
        true
    }
}

impl Window {
    fn from(number: u64, used: u64) -> Self {
        let mut window = Self {
            highest: number,
            arrived: Box::new([0; WORDS]),
            used,
        };
        window.set(number);
        window
    }

    fn take(&mut self, number: u64) -> bool {
        if number > self.highest {
            // Forget the numbers that leave the window.
            let gap = (number - self.highest).min(WINDOW);
            for new in number - (gap - 1)..=number {
                let (word, bit) = place(new);
                self.arrived[word] &= !bit;
            }
            self.highest = number;
        } else if self.highest - number >= WINDOW || self.has(number) {
            return false;
        }
        self.set(number);
        true
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.arrived[word] & bit != 0
    }

    fn set(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.arrived[word] |= bit;
    }
}

/// The word and the bit of a number.
fn place(number: u64) -> (usize, u64) {
    let at = (number % WINDOW) as usize;
    (at / 64, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn id(number: usize) -> SenderId {
        (number as u128).to_be_bytes()
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_a_set_of_all_numbers(
            steps in prop::collection::vec((0u64..3 * WINDOW, prop::bool::ANY), 1..400),
            start in prop::sample::select(vec![0, 1, WINDOW - 1, WINDOW, 1 << 40, u64::MAX - 5 * WINDOW]),
        ) {
            let mut windows = ReplayWindows::default();
            let (mut arrived, mut highest) = (BTreeSet::new(), None::<u64>);
            for (step, forward) in steps {
                let number = match (highest, forward) {
                    (None, _) => start,
                    (Some(highest), true) => highest.saturating_add(step % 70),
                    (Some(highest), false) => highest.saturating_sub(step),
                };
                let too_old = highest.is_some_and(|it| it >= WINDOW && number <= it - WINDOW);
                let expected = !too_old && !arrived.contains(&number);
                prop_assert_eq!(windows.is_new(HOST, id(1), number), expected, "{}", number);
                arrived.insert(number);
                highest = highest.max(Some(number));
            }
        }
    }

    #[test]
    fn a_jump_forgets_everything_before_it() {
        let mut windows = ReplayWindows::default();
        assert!(windows.is_new(HOST, id(1), 0) && windows.is_new(HOST, id(1), 10 * WINDOW));
        assert!(!windows.is_new(HOST, id(1), 9 * WINDOW));
        assert!(windows.is_new(HOST, id(1), 9 * WINDOW + 1));
        assert!(!windows.is_new(HOST, id(1), 9 * WINDOW + 1));
        assert!(windows.is_new(HOST, id(1), u64::MAX) && !windows.is_new(HOST, id(1), u64::MAX));
    }

    #[test]
    fn the_sender_that_was_silent_for_longest_is_forgotten_and_then_refused() {
        let mut windows = ReplayWindows::default();
        for sender in 1..=SENDERS {
            assert!(windows.is_new(HOST, id(2 * sender), 7));
        }
        assert!(windows.is_new(HOST, id(2), 8), "the oldest, but not silent");
        assert!(windows.is_new(HOST, id(2 * SENDERS + 1), 7));
        assert_eq!(windows.hosts[&HOST].windows.len(), SENDERS);
        assert!(!windows.is_new(HOST, id(4), 8), "it was forgotten");
        assert!(!windows.is_new(HOST, id(3), 8), "it is older than that");
        assert!(windows.is_new(HOST, id(2), 9), "it is remembered");
        assert!(windows.is_new(HOST, id(5), 8), "it is younger");
        let other = IpAddr::from([10, 0, 0, 2]);
        assert!(
            windows.is_new(other, id(3), 8),
            "of another host, by whose clock it is young"
        );
    }
}
