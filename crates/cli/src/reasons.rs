//! `rkey explain --reasons`: each reason by example.
//!
//! Most examples are real: the code makes the mistakes against a protection table of its own and shows that table's denials,
//! which are the same as a device's. Denials that no table causes are constructed directly.

use anyhow::{Context, Result};
use rkey::{Access, Denial, Key, WindowKind};
use rkey_device::base::VaRange;
use rkey_device::core::{
    Accessor, Addressing, Api, Attempt, BindRegion, BindRequest, DomainId, LKey, Limits, LocalUse,
    NamedKey, Operation, Protection, RKey, Region, RegionSpec, Rules, Secrets,
};

/// The memory of the examples. It is never accessed.
const BASE: u64 = 0x7f12_a000;
const LEN: u64 = 4096;
/// The queue pairs of the examples: the one that sends the requests, and another one.
const QP: u32 = 0x12;
const OTHER_QP: u32 = 0x13;

/// A table with a domain, to make mistakes against.
struct Table {
    table: Protection,
    domain: DomainId,
    denials: Vec<Denial>,
}

/// At least one denial for each reason.
pub(crate) fn examples() -> Result<Vec<Denial>> {
    let mut table = Table::new()?;
    table.keys()?;
    table.states()?;
    table.ranges()?;
    table.windows()?;
    table.others()?;
    Ok(table.denials)
}

fn range(start: u64, len: u64) -> Result<VaRange> {
    VaRange::new(start, len).context("the range wraps past the last address")
}

impl Table {
    fn new() -> Result<Self> {
        let table = Protection::new(Limits::default(), Secrets([1, 2, 3, 4]));
        let domain = table.create_domain()?;
        let denials = Vec::new();
        Ok(Self {
            table,
            domain,
            denials,
        })
    }

    fn register(&self, change: impl FnOnce(&mut RegionSpec<'_>)) -> Result<Region> {
        let ranges = [range(BASE, LEN)?];
        let mut spec = RegionSpec::new(self.domain, &ranges, Access::all());
        change(&mut spec);
        Ok(self.table.register(&spec)?)
    }

    fn accessor(&self) -> Accessor {
        Accessor {
            domain: self.domain,
            qp: QP,
            peer: None,
        }
    }

    /// Makes a peer's request, which must be denied.
    fn ask(&mut self, key: Key, addr: u64, len: u64, operation: Operation) -> Result<()> {
        let (who, key) = (self.accessor(), RKey::Device(key));
        let answer = self.table.check_remote(&who, key, addr, len, operation);
        let denial = answer
            .err()
            .context("an access that must be denied was granted")?;
        self.denials.push(*denial);
        Ok(())
    }

    fn write(&mut self, key: Key, addr: u64, len: u64) -> Result<()> {
        self.ask(key, addr, len, Operation::Write)
    }

    fn keys(&mut self) -> Result<()> {
        let region = self.register(|_| {})?;
        self.write(Key(0x42), BASE, 16)?;
        let deregistered = self.register(|_| {})?;
        let deregistering = self.table.deregister(deregistered.id)?;
        anyhow::ensure!(
            deregistering.finish().is_ok(),
            "cannot deregister an unused region"
        );
        self.write(deregistered.key, BASE, 16)?;
        self.write(Key(region.local_key.0), BASE, 16)?;
        let key = LKey(region.key.0);
        let local = self
            .table
            .check_local(self.domain, key, BASE, 16, LocalUse::Send);
        let denial = local
            .err()
            .context("a remote key was accepted as a local key")?;
        self.denials.push(*denial);
        let elsewhere = self.table.create_domain()?;
        let foreign = self.register(|spec| spec.domain = elsewhere)?;
        self.write(foreign.key, BASE, 16)
    }

    fn states(&mut self) -> Result<()> {
        let disabled = self.register(|spec| spec.disabled = true)?;
        self.write(disabled.key, BASE, 16)?;
        let read_only = self.register(|spec| spec.access = Access::REMOTE_READ)?;
        self.write(read_only.key, BASE, 16)?;
        let of_one_peer = self.register(|spec| spec.peer = Some(1))?;
        self.write(of_one_peer.key, BASE, 16)?;
        let of_one_qp = self.register(|spec| {
            spec.disabled = true;
            spec.needs_endpoint = true;
        })?;
        self.table.bind_endpoint(of_one_qp.id, OTHER_QP)?;
        self.table.enable(of_one_qp.id)?;
        self.write(of_one_qp.key, BASE, 16)?;
        // The region is deregistered while an access is in progress.
        let busy = self.register(|_| {})?;
        let (who, key) = (self.accessor(), RKey::Device(busy.key));
        let grant = self
            .table
            .check_remote(&who, key, BASE, 16, Operation::Read);
        let grant = grant.map_err(|denial| *denial)?;
        let deregistering = self.table.deregister(busy.id)?;
        let late = self
            .table
            .check_remote(&who, key, BASE, 16, Operation::Write);
        let late = late
            .err()
            .context("an access to a region that is being deregistered was granted")?;
        drop((grant, deregistering));
        self.denials.push(*late);
        Ok(())
    }

    fn ranges(&mut self) -> Result<()> {
        let region = self.register(|_| {})?;
        self.write(region.key, BASE + LEN - 8, 16)?;
        self.write(region.key, BASE - 8, 16)?;
        self.write(region.key, 0xff0, 16)?;
        self.write(region.key, u64::MAX - 7, 16)?;
        let zero_based = self.register(|spec| spec.addressing = Addressing::Zero)?;
        self.write(zero_based.key, BASE + 0xff0, 16)?;
        let segments = [range(BASE, LEN)?, range(BASE + 2 * LEN, LEN)?];
        let spec = RegionSpec::new(self.domain, &segments, Access::all());
        let scattered = self.table.register(&spec)?;
        self.write(scattered.key, BASE + LEN - 8, 16)?;
        let odd = [range(BASE + 4, LEN)?];
        let spec = RegionSpec {
            addressing: Addressing::Zero,
            ..RegionSpec::new(self.domain, &odd, Access::all())
        };
        let odd = self.table.register(&spec)?;
        self.ask(odd.key, 8, 8, Operation::Atomic)
    }

    fn windows(&mut self) -> Result<()> {
        let region = self.register(|_| {})?;
        let unbound = self.table.create_window(self.domain, WindowKind::Type1)?;
        self.write(unbound.key, BASE, 16)?;
        let window = self.table.create_window(self.domain, WindowKind::Type1)?;
        let mut keys = Vec::new();
        for _ in 0..2 {
            keys.push(self.table.bind_window(&BindRequest {
                window: window.id,
                region: BindRegion::Id(region.id),
                range: range(BASE, 64)?,
                access: Access::REMOTE_WRITE,
                zero_based: false,
                new_key: None,
                qp: None,
                domain: self.domain,
                rules: Rules::VERBS,
            })?);
        }
        self.write(keys[0], BASE, 16)?;
        for key in [region.key, keys[1]] {
            let answer = self.table.invalidate(key, &self.accessor(), true);
            let denial = answer
                .err()
                .context("a key that must stay valid was invalidated")?;
            self.denials.push(*denial);
        }
        Ok(())
    }

    /// Denials that the table does not issue.
    fn others(&mut self) -> Result<()> {
        let region = self.register(|_| {})?;
        let (who, key) = (self.accessor(), RKey::Device(region.key));
        let granted = Access::REMOTE_READ;
        let by_qp =
            Denial::by_queue_pair(&who, key, BASE, 16, Operation::Write, granted, Api::Native);
        self.denials.push(*by_qp);
        let attempt = Attempt::Remote(Operation::Write);
        let fault = Denial::fault(attempt, NamedKey::Remote(key), BASE, 16, BASE);
        self.denials.push(*fault);
        self.denials.push(Denial::withheld(attempt, key, BASE, 16));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey::Reason;
    use std::collections::BTreeSet;

    /// The names of all reasons except those of newer versions. A new reason needs a new mistake in this file.
    fn all_names() -> BTreeSet<&'static str> {
        // The reasons of all wire codes that this version knows.
        let mut wire =
            Denial::withheld(Attempt::Remote(Operation::Write), RKey::Requested(1), 1, 1).encode();
        let mut names = BTreeSet::new();
        for code in 1..=u8::MAX {
            wire[2] = code;
            let reason = Denial::decode(&wire).reason;
            if !matches!(reason, Reason::Other(_)) {
                names.insert(reason.name());
            }
        }
        names
    }

    #[test]
    fn every_reason_has_an_example() {
        let examples = examples().unwrap();
        let shown: BTreeSet<_> = examples.iter().map(|it| it.reason.name()).collect();
        assert_eq!(shown, all_names());
        assert!(shown.len() >= 22, "{shown:?}");
    }

    /// Each example describes its request, and the numbers in its advice fit the request.
    #[test]
    fn the_numbers_in_each_example_fit_its_request() {
        for example in examples().unwrap() {
            let text = example.explain();
            assert!(text.lines().count() == 2, "{text}");
            let end = u128::from(example.addr) + u128::from(example.len);
            match example.reason {
                Reason::OutOfRange {
                    memory,
                    before,
                    after,
                } => {
                    assert_eq!(
                        before,
                        memory.start().saturating_sub(example.addr),
                        "{text}"
                    );
                    let past = end.saturating_sub(memory.end().into());
                    assert_eq!(u128::from(after), past, "{text}");
                }
                Reason::NotZeroBased { memory } => assert!(example.addr < memory.len(), "{text}"),
                Reason::ZeroBased { len, offset } => {
                    assert!(example.addr >= len && offset < len, "{text}");
                }
                Reason::Wraps => assert!(end > u128::from(u64::MAX), "{text}"),
                Reason::Misaligned => {
                    assert!(example.len == 8 && text.contains("atomic"), "{text}");
                }
                Reason::NotAWindow | Reason::WindowKind(_) => {
                    assert!(text.starts_with("invalidation"), "{text}");
                }
                Reason::Right { missing, .. } | Reason::QueuePair { missing, .. } => {
                    assert_eq!(missing, Access::REMOTE_WRITE, "{text}");
                }
                _ => {}
            }
        }
    }
}
