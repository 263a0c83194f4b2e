//! Requests about regions, from registration to deregistration.

use super::{World, range};
use crate::answers::core_no;
use rkey_base::range::VaRange;
use rkey_core::*;
use rkey_model as model;
use rkey_model::Name;

impl World {
    pub(super) fn register(&mut self) {
        let Some((domain, domain_id)) = self.some_domain() else {
            return;
        };
        let (addressing, core_addressing) = self.some_addressing();
        let ask = model::Ask {
            domain,
            ranges: self.some_ranges(),
            access: self.some_access(),
            addressing,
            disabled: self.random.one_in(6),
            needs_endpoint: self.random.one_in(10),
            requested: match self.random.below(6) {
                0 => Some(u64::MAX).filter(|_| self.random.one_in(4)),
                1 | 2 => Some(1 + self.random.below(3)),
                _ => None,
            },
            verbs: self.random.one_in(3),
        };
        let ranges: Vec<VaRange> = ask.ranges.iter().copied().map(range).collect();
        let magazine = self.magazines.get(self.random.below(3) as usize);
        let spec = RegionSpec {
            domain: domain_id,
            ranges: &ranges,
            access: Access::from_bits_retain(ask.access),
            addressing: core_addressing,
            disabled: ask.disabled,
            requested_key: ask.requested,
            needs_endpoint: ask.needs_endpoint,
            peer: None,
            memory: MemoryKind::User,
            internal: self.random.one_in(4),
            rules: Self::rules(ask.verbs),
        };
        let core = match magazine {
            Some(magazine) => self.core.register_from(magazine, &spec),
            None => self.core.register(&spec),
        };
        let model = self.model.register(&ask);
        if let Some((region, number)) = self.same("register", &ask, core, core_no, model) {
            self.admit(region, number, domain, ask.ranges, addressing);
        }
    }

    fn admit(
        &mut self,
        region: Region,
        number: usize,
        domain: usize,
        ranges: Vec<(u64, u64)>,
        addressing: model::Addressing,
    ) {
        assert_eq!(number, self.regions.len());
        assert_ne!(region.key.0, region.local_key.0);
        let base = match addressing {
            model::Addressing::Virtual => ranges[0].0,
            model::Addressing::Zero => 0,
            model::Addressing::Iova(base) => base,
        };
        self.regions.push(region);
        self.region_domains.push(domain);
        self.aims.push((ranges, base));
        self.learn(Name::Local(number));
        self.learn(Name::Remote(number));
        if let Some(key) = region.requested {
            self.learn(Name::Requested(key));
        }
    }

    pub(super) fn reregister(&mut self) {
        let Some(number) = self.some_region() else {
            return;
        };
        let Some((domain, domain_id)) = self.some_domain() else {
            return;
        };
        let domains = self.random.one_in(2).then_some((domain, domain_id));
        let (ranges, (addressing, core_addressing)) = (self.some_ranges(), self.some_addressing());
        let new_ranges = self.random.one_in(2);
        let access = self
            .random
            .one_in(2)
            .then(|| (self.some_access(), self.random.one_in(3)));
        let core_ranges: Vec<VaRange> = ranges.iter().copied().map(range).collect();
        let id = self.regions[number].id;
        let change = Change {
            domain: domains.map(|(_, id)| id),
            ranges: new_ranges.then_some((&core_ranges[..], core_addressing)),
            access: access.map(|(access, _)| Access::from_bits_retain(access)),
            rules: Self::rules(access.is_some_and(|(_, verbs)| verbs)),
        };
        let core = self
            .core
            .reregister(id, &change)
            .map(|(region, mut deregistering)| {
                self.section.drain_section(&mut deregistering);
                deregistering.finish().unwrap();
                region
            });
        let model_ranges = new_ranges.then_some((&ranges[..], addressing));
        let model = self.model.reregister(
            number,
            domains.map(|(number, _)| number),
            model_ranges,
            access,
        );
        let what = (number, domains, model_ranges, access);
        if let Some((region, new)) = self.same("reregister", what, core, core_no, model) {
            let domain = domains.map_or(self.region_domains[number], |(domain, _)| domain);
            if new_ranges {
                self.admit(region, new, domain, ranges, addressing);
            } else {
                let (ranges, base) = self.aims[number].clone();
                self.admit(region, new, domain, ranges, model::Addressing::Iova(base));
            }
        }
    }

    pub(super) fn enable(&mut self) {
        let Some(number) = self.some_region() else {
            return;
        };
        let core = self.core.enable(self.regions[number].id);
        let model = self.model.enable(number);
        self.same("enable", number, core, core_no, model);
    }

    pub(super) fn bind_region(&mut self) {
        let Some(number) = self.some_region() else {
            return;
        };
        let (id, endpoint) = (self.regions[number].id, self.random.one_in(2));
        let to = (!self.random.one_in(3)).then(|| self.some_qp());
        let core = match (endpoint, to) {
            (true, Some(to)) => self.core.bind_endpoint(id, to),
            (true, None) => self.core.unbind_endpoint(id),
            (false, Some(to)) => self.core.bind_counter(id, to),
            (false, None) => self.core.unbind_counter(id),
        };
        let model = self.model.bind_region(number, endpoint, to);
        self.same("bind region", (number, endpoint, to), core, core_no, model);
    }

    pub(super) fn deregister(&mut self) {
        let Some(number) = self.some_region() else {
            return;
        };
        let (id, revoke) = (self.regions[number].id, self.random.one_in(5));
        let magazine = self.magazines.get(self.random.below(3) as usize);
        let core = match (magazine, revoke) {
            (Some(magazine), true) => self.core.revoke_and_deregister_into(magazine, id),
            (None, true) => self.core.revoke_and_deregister(id),
            (Some(magazine), false) => self.core.deregister_into(magazine, id),
            (None, false) => self.core.deregister(id),
        };
        let core = core.map(|mut deregistering| {
            self.section.drain_section(&mut deregistering);
            deregistering.finish().unwrap();
        });
        let model = self.model.deregister(number, revoke);
        self.same("deregister", (number, revoke), core, core_no, model);
    }

    fn some_ranges(&mut self) -> Vec<(u64, u64)> {
        let segments = match self.random.below(40) {
            0 => 0,
            1 => 4,
            2..=6 => 2,
            7..=14 => 3,
            _ => 1,
        };
        let mut ranges = Vec::new();
        for _ in 0..segments {
            let len = if self.random.one_in(50) {
                0
            } else {
                1 + self.random.below(20)
            };
            let start = match self.random.below(12) {
                0 => u64::MAX - len - self.random.below(4),
                1 => 1 + self.random.below(8),
                _ => 0x1000 + self.random.below(64),
            };
            ranges.push((start, len));
        }
        ranges
    }

    fn some_addressing(&mut self) -> (model::Addressing, Addressing) {
        match self.random.below(5) {
            0 | 1 => (model::Addressing::Zero, Addressing::Zero),
            2 => {
                let base = self.random.pick(&[0, 5, 0x2000, 0x1010, u64::MAX - 9]);
                (model::Addressing::Iova(base), Addressing::Iova(base))
            }
            _ => (model::Addressing::Virtual, Addressing::Virtual),
        }
    }
}
