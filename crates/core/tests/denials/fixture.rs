//! A protection table with one domain, and a check of a denial's texts.

use rkey_base::range::VaRange;
use rkey_core::*;

pub(crate) const QP: u32 = 0x12;

pub(crate) struct Fixture {
    pub(crate) table: Protection,
    pub(crate) domain: DomainId,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let table = Protection::new(Limits::default(), Secrets([11, 22, 33, 44]));
        let domain = table.create_domain().unwrap();
        Self { table, domain }
    }

    pub(crate) fn register(&self, access: Access, addressing: Addressing) -> Region {
        let ranges = [VaRange::new(0x7000, 0x1000).unwrap()];
        let spec = RegionSpec {
            addressing,
            ..RegionSpec::new(self.domain, &ranges, access)
        };
        self.table.register(&spec).unwrap()
    }

    pub(crate) fn who(&self) -> Accessor {
        Accessor {
            domain: self.domain,
            qp: QP,
            peer: None,
        }
    }

    pub(crate) fn write(&self, key: u32, addr: u64, len: u64) -> Box<Denial> {
        let who = self.who();
        let key = RKey::Device(Key(key));
        self.table
            .check_remote(&who, key, addr, len, Operation::Write)
            .unwrap_err()
    }
}

/// Checks what both sides print. The peer's text differs from the owner's only in the queue pair.
#[track_caller]
pub(crate) fn says(denial: &Denial, sentence: &str, advice: &str) {
    assert_eq!(denial.to_string(), sentence);
    assert_eq!(denial.explain(), format!("{sentence}\n  {advice}"));
    let peer = Denial::decode(&denial.encode());
    let over = format!(" over {} {QP:#x}", denial.api.words().queue_pair);
    if !matches!(denial.reason, Reason::OtherDomain { .. }) {
        assert_eq!(peer.to_string(), sentence.replace(&over, ""));
    }
    assert_eq!(peer.advice(), advice);
}
