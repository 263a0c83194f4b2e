//! Device and model side by side, and the random requests that both get.

use crate::answers::{bind_no, core_no, denial_no};
use rkey_base::range::VaRange;
use rkey_core::*;
use rkey_model as model;
use rkey_model::{Model, Name, No, right};
use std::collections::HashMap;
use std::fmt::Debug;

const DOMAINS: u64 = 3;
const QPS: u64 = 3;

/// A small generator (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Device and model side by side.
pub(crate) struct World {
    pub(crate) random: Random,
    core: Protection,
    section: Section,
    model: Model,
    domains: Vec<DomainId>,
    regions: Vec<Region>,
    /// Ranges and first request address of each region, to aim at it.
    aims: Vec<(Vec<(u64, u64)>, u64)>,
    /// Domain of each region and each window, to ask where it can be granted.
    region_domains: Vec<usize>,
    window_domains: Vec<usize>,
    /// Where each window was bound last: region, first address of the window, bytes, queue pair,
    /// and by which key.
    bound: HashMap<usize, (usize, u64, u64, Option<u32>, Name)>,
    windows: Vec<(WindowId, Key, bool)>,
    chosen: HashMap<(usize, usize), Key>,
    names: Vec<Name>,
    pub(crate) log: Vec<String>,
    /// How often each kind of request got each kind of answer.
    pub(crate) seen: HashMap<(&'static str, Option<No>), u64>,
}

fn range((start, len): (u64, u64)) -> VaRange {
    VaRange::new(start, len).unwrap()
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let limits = Limits {
            max_domains: DOMAINS as u32,
            max_regions: 6,
            max_windows: 4,
            max_total_bytes: 120,
            max_segments: 3,
            ..Limits::default()
        };
        let model = model::Limits {
            domains: 3,
            regions: 6,
            windows: 4,
            bytes: 120,
            pieces: 3,
        };
        let core = Protection::new(limits, Secrets([0; 4].map(|_: i32| random.next())));
        Self {
            section: core.section(),
            core,
            random,
            model: Model::new(model),
            domains: vec![],
            regions: vec![],
            aims: vec![],
            region_domains: vec![],
            window_domains: vec![],
            bound: HashMap::new(),
            windows: vec![],
            chosen: HashMap::new(),
            names: vec![Name::Never, Name::Requested(1), Name::Requested(2)],
            log: vec![],
            seen: HashMap::new(),
        }
    }

    /// Compares an answer of the device with one of the model, and passes the device's on.
    #[track_caller]
    fn same<T, E: Debug, M>(
        &mut self,
        kind: &'static str,
        what: impl Debug,
        core: Result<T, E>,
        no: fn(&E) -> No,
        model: Result<M, No>,
    ) -> Option<(T, M)> {
        let answer = match &core {
            Ok(_) => "done".to_owned(),
            Err(error) => format!("{error:?}"),
        };
        self.log.push(format!("{kind} {what:?} -> {answer}"));
        match (core, model) {
            (Ok(core), Ok(model)) => {
                *self.seen.entry((kind, None)).or_default() += 1;
                Some((core, model))
            }
            (Err(core), Err(model)) if no(&core) == model => {
                *self.seen.entry((kind, Some(model))).or_default() += 1;
                None
            }
            (core, model) => {
                let core = core.map(|_| "yes").map_err(|error| no(&error));
                panic!("device: {core:?}, model: {:?}", model.map(|_| "yes"));
            }
        }
    }

    pub(crate) fn step(&mut self) {
        match self.random.below(32) {
            0 | 1 if self.random.one_in(2) => self.open_domain(),
            2 if self.random.one_in(3) => self.close_domain(),
            0..=6 => self.register(),
            7 => self.enable(),
            8 => self.tie(),
            9 => self.reregister(),
            10 | 11 => self.close_region(),
            12 | 13 => self.create_window(),
            14 => self.close_window(),
            15..=18 => self.bind(),
            19 => self.promise(),
            20 | 21 => self.invalidate(),
            22 if self.random.one_in(2) => self.forget_endpoint(),
            22..=28 => self.check_remote(),
            _ => self.check_local(),
        }
    }

    fn some_domain(&mut self) -> Option<(usize, DomainId)> {
        let number = self.random.below(self.domains.len().max(1) as u64) as usize;
        let number = if self.random.one_in(3) { number } else { 0 };
        Some((number, *self.domains.get(number)?))
    }

    /// Mostly the domain of what is asked for.
    fn domain_for(&mut self, number: Option<usize>) -> Option<(usize, DomainId)> {
        match number {
            Some(number) if !self.random.one_in(6) => Some((number, self.domains[number])),
            _ => self.some_domain(),
        }
    }

    /// The domain of what a key names.
    fn domain_of(&self, name: Name) -> Option<usize> {
        match name {
            Name::Local(region) | Name::Remote(region) => Some(self.region_domains[region]),
            Name::Chosen(window, _) | Name::Type2(window, _) => Some(self.window_domains[window]),
            Name::Requested(_) | Name::Never => None,
        }
    }

    /// Any region, more often one of the last ones.
    fn some_region(&mut self) -> Option<usize> {
        let count = self.regions.len() as u64;
        let near = if self.random.one_in(3) {
            count
        } else {
            count.min(4)
        };
        (count > 0).then(|| (count - 1 - self.random.below(near)) as usize)
    }

    fn some_window(&mut self) -> Option<usize> {
        let count = self.windows.len() as u64;
        let near = if self.random.one_in(3) {
            count
        } else {
            count.min(3)
        };
        (count > 0).then(|| (count - 1 - self.random.below(near)) as usize)
    }

    fn some_qp(&mut self) -> u32 {
        7 + self.random.below(QPS) as u32
    }

    /// Mostly the queue pair that a window belongs to.
    fn qp_for(&mut self, name: Name) -> u32 {
        match name {
            Name::Type2(window, _) | Name::Chosen(window, _) if !self.random.one_in(4) => self
                .bound
                .get(&window)
                .and_then(|bound| bound.3)
                .unwrap_or(7),
            _ => self.some_qp(),
        }
    }

    fn some_name(&mut self) -> Name {
        let count = self.names.len() as u64;
        let near = if self.random.one_in(3) {
            count
        } else {
            count.min(8)
        };
        let name = self.names[(count - 1 - self.random.below(near)) as usize];
        match name {
            Name::Type2(window, bits) if self.random.one_in(4) => {
                Name::Type2(window, bits.wrapping_add(1))
            }
            name => name,
        }
    }

    fn key(&mut self, name: Name) -> WireKey {
        WireKey::Device(match name {
            Name::Local(region) => Key(self.regions[region].local_key.0),
            Name::Remote(region) => self.regions[region].key,
            Name::Chosen(window, number) => self.chosen[&(window, number)],
            Name::Type2(window, bits) => {
                let key = self.windows[window].1;
                key.with_consumer_bits(bits)
            }
            Name::Requested(key) => return WireKey::Requested(key),
            Name::Never => Key(self.random.below(256) as u32),
        })
    }

    fn device_key(&mut self, name: Name) -> (Name, Key) {
        match self.key(name) {
            WireKey::Device(key) => (name, key),
            WireKey::Requested(_) => (Name::Never, Key(3)),
        }
    }

    /// A new name for the tests to aim at, the newest last.
    fn learn(&mut self, name: Name) {
        self.names.retain(|known| *known != name);
        self.names.push(name);
    }

    pub(crate) fn open_domain(&mut self) {
        let (core, model) = (self.core.create_domain(), self.model.open_domain());
        if let Some((id, _)) = self.same("open domain", (), core, core_no, model) {
            self.domains.push(id);
        }
    }

    fn close_domain(&mut self) {
        let Some((number, id)) = self.some_domain() else {
            return;
        };
        let (core, model) = (self.core.close_domain(id), self.model.close_domain(number));
        self.same("close domain", number, core, core_no, model);
    }

    fn some_ranges(&mut self) -> Vec<(u64, u64)> {
        let pieces = match self.random.below(40) {
            0 => 0,
            1 => 4,
            2..=6 => 2,
            7..=14 => 3,
            _ => 1,
        };
        let mut ranges = Vec::new();
        for _ in 0..pieces {
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

    fn some_access(&mut self) -> u32 {
        match self.random.below(4) {
            0 => 0xff,
            1 => right::REMOTE | right::RECV | right::READ | right::BIND,
            _ => self.random.below(256) as u32,
        }
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

    fn rules(verbs: bool) -> Rules {
        if verbs { Rules::VERBS } else { Rules::empty() }
    }

    fn register(&mut self) {
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
        let core = self.core.register(&RegionSpec {
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
        });
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

    fn reregister(&mut self) {
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
        let core = self.core.reregister(id, &change).map(|(region, closing)| {
            closing.finish().unwrap();
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

    fn enable(&mut self) {
        let Some(number) = self.some_region() else {
            return;
        };
        let core = self.core.enable(self.regions[number].id);
        let model = self.model.enable(number);
        self.same("enable", number, core, core_no, model);
    }

    fn tie(&mut self) {
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
        let model = self.model.tie(number, endpoint, to);
        self.same("tie", (number, endpoint, to), core, core_no, model);
    }

    fn close_region(&mut self) {
        let Some(number) = self.some_region() else {
            return;
        };
        let (id, revoke) = (self.regions[number].id, self.random.one_in(5));
        let core = if revoke {
            self.core.revoke_region(id)
        } else {
            self.core.close_region(id)
        };
        let core = core.map(|closing| closing.finish().unwrap());
        let model = self.model.close_region(number, revoke);
        self.same("close", (number, revoke), core, core_no, model);
    }

    fn create_window(&mut self) {
        let Some((domain, id)) = self.some_domain() else {
            return;
        };
        let kind = self.random.pick(&WindowKind::ALL);
        let core = self.core.create_window(id, kind);
        let model = self.model.create_window(domain, kind.is_type2());
        if let Some((window, number)) =
            self.same("create window", (domain, kind), core, core_no, model)
        {
            assert_eq!(number, self.windows.len());
            self.window_domains.push(domain);
            self.windows.push((window.id, window.key, kind.is_type2()));
            self.chosen.insert((number, 0), window.key);
            let name = Name::Type2(number, window.key.consumer_bits());
            self.learn(if kind.is_type2() {
                name
            } else {
                Name::Chosen(number, 0)
            });
        }
    }

    fn close_window(&mut self) {
        let Some(number) = self.some_window() else {
            return;
        };
        let core = self.core.close_window(self.windows[number].0);
        let model = self.model.close_window(number);
        self.same("close window", number, core, core_no, model);
    }

    fn promise(&mut self) {
        let Some(number) = self.some_window() else {
            return;
        };
        let core = self.core.next_window_key(self.windows[number].0);
        let model = self.model.promise(number);
        if let Some((key, name)) = self.same("promise", number, core, bind_no, model) {
            self.agree_on(name, key);
        }
    }

    /// The device named a window's key: it is the one the model means, and no key of before.
    fn agree_on(&mut self, name: Name, key: Key) {
        match name {
            Name::Chosen(window, number) => {
                if let Some(known) = self.chosen.insert((window, number), key) {
                    assert_eq!(known, key);
                }
                let others = self
                    .chosen
                    .iter()
                    .filter(|(name, _)| **name != (window, number));
                assert!(
                    others.into_iter().all(|(_, other)| *other != key),
                    "{key} again"
                );
            }
            Name::Type2(window, bits) => {
                assert_eq!(key, self.windows[window].1.with_consumer_bits(bits));
            }
            _ => unreachable!(),
        }
        self.learn(name);
    }

    fn bind(&mut self) {
        let (Some(window), Some(region)) = (self.some_window(), self.some_region()) else {
            return;
        };
        let owner = self.window_domains[window];
        let near = (0..self.regions.len())
            .rev()
            .filter(|it| self.region_domains[*it] == owner)
            .take(3);
        let near: Vec<usize> = near.collect();
        let region = if near.is_empty() || self.random.one_in(6) {
            region
        } else {
            self.random.pick(&near)
        };
        let Some((domain, domain_id)) = self.domain_for(Some(owner)) else {
            return;
        };
        let (id, window_key, type2) = self.windows[window];
        let key = match self.random.below(8) {
            0 => None,
            1 => Some(self.some_name()),
            _ if type2 => Some(Name::Type2(window, self.random.below(4) as u8)),
            _ => self.names.iter().rev().copied().find(
                |name| matches!(name, Name::Chosen(owner, number) if *owner == window && *number > 0),
            ),
        };
        let core_key = key.map(|name| self.device_key(name));
        let (addr, len) = self.aim(region);
        let mut asked = (addr, len);
        if self.random.one_in(6) {
            asked.1 = 0;
        }
        if asked.0.checked_add(asked.1).is_none() {
            asked.1 = 0;
        }
        let access = match self.random.below(6) {
            0 => self.random.below(256) as u32,
            1 => 0,
            2 | 3 => right::REMOTE,
            _ => self.random.below(8) as u32 * right::REMOTE_READ,
        };
        let ask = model::Bind {
            window,
            region,
            range: asked,
            access,
            zero_based: self.random.one_in(3) && (type2 || self.random.one_in(4)),
            key: core_key.map(|(name, _)| name),
            qp: (!self.random.one_in(8)).then(|| self.some_qp()),
            domain,
            verbs: self.random.one_in(3),
        };
        let handle = &self.regions[region];
        let by_key = self.random.one_in(2);
        let core = self.core.bind_window(&BindRequest {
            window: id,
            region: if by_key {
                BindRegion::Key(handle.local_key)
            } else {
                BindRegion::Id(handle.id)
            },
            range: range(asked),
            access: Access::from_bits_retain(access),
            zero_based: ask.zero_based,
            new_key: core_key.map(|(_, key)| key),
            qp: ask.qp,
            domain: domain_id,
            rules: Self::rules(ask.verbs),
        });
        let model = self.model.bind(&ask);
        if let Some((key, name)) = self.same("bind", (&ask, window_key), core, bind_no, model) {
            let base = if ask.zero_based { 0 } else { asked.0 };
            self.bound
                .insert(window, (region, base, asked.1, ask.qp, name));
            self.agree_on(name, key);
        }
    }

    fn invalidate(&mut self) {
        let name = self.some_name();
        let Some((domain, id)) = self.domain_for(self.domain_of(name)) else {
            return;
        };
        let (name, key) = self.device_key(name);
        let (qp, remote) = (self.qp_for(name), self.random.one_in(2));
        let core = self.core.invalidate(
            key,
            &Accessor {
                domain: id,
                qp,
                peer: None,
            },
            remote,
        );
        let model = self.model.invalidate(name, domain, qp);
        self.same(
            "invalidate",
            (name, domain, qp),
            core,
            |denial| denial_no(denial),
            model,
        );
    }

    fn forget_endpoint(&mut self) {
        let qp = self.some_qp();
        self.log.push(format!("forget endpoint {qp}"));
        self.core.forget_endpoint(qp);
        self.model.forget_endpoint(qp);
    }

    /// Some bytes in, near or off a region.
    fn aim(&mut self, region: usize) -> (u64, u64) {
        let (ranges, base) = self.aims[region].clone();
        let (real, size) = self.random.pick(&ranges);
        let total: u64 = ranges.iter().map(|(_, len)| len).sum();
        let (from, size) = match self.random.below(8) {
            0 => (real, size),
            1 => (0, total),
            2 => (base, total),
            3 if base == ranges[0].0 => (real, size),
            _ => (base, total),
        };
        let offset = self.random.below(size + 2);
        let addr = if self.random.one_in(8) {
            from.wrapping_sub(1 + self.random.below(3))
        } else {
            from.wrapping_add(offset)
        };
        let len = match self.random.below(12) {
            0 => size,
            1 => 0,
            2 => u64::MAX - self.random.below(4),
            3 => u64::MAX.wrapping_sub(addr),
            4 => 8,
            _ => 1 + self.random.below(size.saturating_sub(offset).max(1)),
        };
        (addr, len)
    }

    fn check_remote(&mut self) {
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
            self.core
                .check_remote_in(&self.section, &who, key, addr, len, want)
                .map(|lease| bytes(&lease))
        } else {
            self.core
                .check_remote(&who, key, addr, len, want)
                .map(|lease| bytes(&lease))
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

    fn check_local(&mut self) {
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
                .map(|lease| bytes(&lease))
        } else if visited {
            self.core
                .check_local_in(&self.section, id, LocalKey(key.0), addr, len, want)
                .map(|lease| bytes(&lease))
        } else {
            self.core
                .check_local(id, LocalKey(key.0), addr, len, want)
                .map(|lease| bytes(&lease))
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

/// The address of every byte of a lease.
fn bytes(lease: &Lease<'_>) -> Vec<u64> {
    lease
        .spans()
        .flat_map(|span| span.start()..span.end())
        .collect()
}
