//! Accesses: who may touch which bytes, with a remote key or locally.

use super::World;
use crate::answers::denial_no;
use rkey_core::*;
use rkey_model::{Name, right};

impl World {
    pub(super) fn check_remote(&mut self) {
        let Some(region) = self.some_region() else {
            return;
        };
        let name = self.some_name();
        let name = match self
            .some_window()
            .and_then(|window| self.bound.get(&window))
        {
            Some(bound) if self.random.one_in(3) => bound.4,
            _ => name,
        };
        let region = match name {
            Name::Local(region) | Name::Remote(region) => region,
            _ => region,
        };
        let Some((domain, id)) = self.domain_for(self.domain_of(name)) else {
            return;
        };
        let (mut addr, mut len) = self.aim(region);
        if let Name::Chosen(window, _) | Name::Type2(window, _) = name
            && let Some(&(_, base, size, ..)) = self.bound.get(&window)
            && !self.random.one_in(5)
        {
            let offset = self.random.below(size + 1);
            addr = base.wrapping_add(offset);
            len = 1 + self.random.below((size - offset).max(1) + 1);
        }
        let (want, access) = self.random.pick(&[
            (Operation::Write, right::REMOTE_WRITE),
            (Operation::Read, right::REMOTE_READ),
            (Operation::Atomic, right::REMOTE_ATOMIC),
        ]);
        if want == Operation::Atomic {
            len = 8;
        }
        let (key, qp) = (self.key(name), self.qp_for(name));
        let who = Accessor {
            domain: id,
            qp,
            peer: None,
        };
        let core = if self.random.one_in(2) {
            self.section
                .check_remote(&who, key, addr, len, want)
                .map(|grant| bytes(&grant))
        } else {
            self.core
                .check_remote(&who, key, addr, len, want)
                .map(|grant| bytes(&grant))
        };
        let model = self.model.check(domain, Some(qp), name, addr, len, access);
        let what = (want, name, domain, qp, addr, len);
        let kind = match name {
            _ if len == 0 => "access of nothing",
            Name::Requested(_) => "access by requested key",
            Name::Chosen(..) => "access by window",
            Name::Type2(..) => "access by type 2 window",
            _ => "access by key",
        };
        if let Some((core, model)) = self.same(kind, what, core, |denial| denial_no(denial), model)
        {
            assert_eq!(core, model, "other bytes were granted");
        }
    }

    pub(super) fn check_local(&mut self) {
        let Some(region) = self.some_region() else {
            return;
        };
        let name = if self.random.one_in(2) {
            self.some_name()
        } else {
            Name::Local(region)
        };
        let Some((domain, id)) = self.domain_for(self.domain_of(name)) else {
            return;
        };
        let (name, key) = self.device_key(name);
        let (addr, len) = self.aim(region);
        let (want, access) = self.random.pick(&[
            (LocalUse::Send, right::SEND),
            (LocalUse::Recv, right::RECV),
            (LocalUse::WriteSource, right::WRITE),
            (LocalUse::ReadSink, right::READ),
            (LocalUse::AtomicResult, right::READ),
        ]);
        let by_handle = name == Name::Local(region) && self.random.one_in(2);
        let visited = self.random.one_in(2);
        let core = if by_handle {
            let region = self.regions[region].id;
            self.core
                .check_region(id, region, addr, len, want)
                .map(|grant| bytes(&grant))
        } else if visited {
            self.section
                .check_local(id, LKey(key.0), addr, len, want)
                .map(|grant| bytes(&grant))
        } else {
            self.core
                .check_local(id, LKey(key.0), addr, len, want)
                .map(|grant| bytes(&grant))
        };
        let model = self.model.check(domain, None, name, addr, len, access);
        let what = (want, name, domain, addr, len);
        if let Some((core, model)) = self.same(
            "local access",
            what,
            core,
            |denial| denial_no(denial),
            model,
        ) {
            assert_eq!(core, model, "other bytes were granted");
        }
    }
}

/// The address of every byte of a grant.
fn bytes(grant: &Grant<'_>) -> Vec<u64> {
    grant
        .spans()
        .flat_map(|span| span.start()..span.range().end())
        .collect()
}
