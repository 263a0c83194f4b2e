//! The semantics of registered memory, expressed as simply as possible.
//!
//! The model follows the clauses of the APIs, not the device: it has no slots, no packed keys and no locks. Memory is a
//! list of bytes, each with the address that requests use for it, its actual address, and its segment; an access is
//! granted if its bytes are in the list. Objects are never forgotten, only marked as closed, so a stale key can be
//! distinguished from one that was never issued. A test makes the same requests to the model and the device and
//! compares the answers.

pub use words::*;

#[rustfmt::skip]
#[allow(missing_docs)]
mod words {
    use std::collections::HashSet;

    /// Access rights, one bit each.
    pub mod right {
        pub const SEND: u32 = 1; pub const RECV: u32 = 2; pub const READ: u32 = 4; pub const WRITE: u32 = 8;
        pub const REMOTE_READ: u32 = 16; pub const REMOTE_WRITE: u32 = 32; pub const REMOTE_ATOMIC: u32 = 64;
        pub const BIND: u32 = 128; pub const REMOTE: u32 = 112; pub const CHANGING: u32 = 96; pub const LOCAL_WRITE: u32 = 6;
    }

    /// The reasons for refusals, of the owner's requests and of accesses.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
    pub enum No {
        NoSuchDomain, NoSuchRegion, NoSuchWindow, Busy, Limit, Empty, AddressWraps, AccessNeeds, KeyTaken, KeyReserved,
        AlreadyEnabled, AlreadyBound, NeedsEndpoint, ForeignKey, StillBound, ZeroLength, NotRemote, ZeroBasedWindow,
        ZeroBasedRegion, KeyAndQpNeeded, RegionLacks,
        UnknownKey, Stale, LKey, RemoteKey, OtherDomain, Disabled, Unbound, WrongEndpoint, Right, Wraps, OutOfRange,
        CrossesSegments, Misaligned, NotAWindow, WindowKind,
    }

    /// How requests name bytes.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub enum Addressing { Virtual, Zero, Iova(u64) }

    /// What a key names. Regions and windows are numbered in the order in which they were made.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
    pub enum Name {
        /// Local and remote key of a region.
        Local(usize), Remote(usize),
        /// A requested key; one that was never issued.
        Requested(u64), Never,
        /// Key number `.1` that the device chose for window `.0` (type 1, DAT); that of a type 2 window with low bits.
        Chosen(usize, usize), Type2(usize, u8),
    }

    /// A request to register.
    #[derive(Clone, Debug)]
    pub struct Ask {
        pub domain: usize, pub ranges: Vec<(u64, u64)>, pub access: u32, pub addressing: Addressing, pub disabled: bool,
        pub needs_endpoint: bool, pub requested: Option<u64>, pub verbs: bool,
    }

    /// A request to bind. `range` is in the region's addresses; an empty range unbinds.
    #[derive(Clone, Debug)]
    pub struct Bind {
        pub window: usize, pub region: usize, pub range: (u64, u64), pub access: u32, pub zero_based: bool,
        pub key: Option<Name>, pub qp: Option<u32>, pub domain: usize, pub verbs: bool,
    }

    /// Limits of the device.
    #[derive(Copy, Clone, Debug)]
    pub struct Limits { pub domains: usize, pub regions: usize, pub windows: usize, pub bytes: u64, pub segments: usize }

    /// A byte: its address in requests, its address in memory, and its segment.
    #[derive(Copy, Clone, PartialEq, Debug)]
    pub(crate) struct Byte { pub named: u64, pub real: u64, pub segment: usize }

    #[derive(Clone, Default, Debug)]
    pub(crate) struct Region {
        pub open: bool, pub domain: usize, pub access: u32, pub disabled: bool, pub was_enabled: bool, pub needs_endpoint: bool, pub bytes: Vec<Byte>,
        pub one_segment_only: bool, pub endpoint: Option<u32>, pub counter: Option<u32>, pub requested: Option<u64>,
    }
    #[derive(Clone, Default, Debug)]
    pub(crate) struct Window {
        pub open: bool, pub domain: usize, pub type2: bool, pub bound: Option<Binding>, pub bits: u8,
        /// The issued keys (type 1, DAT), and which of them are still valid.
        pub keys: usize, pub current: usize, pub promised: HashSet<usize>,
    }
    #[derive(Clone, Debug)]
    pub(crate) struct Binding { pub region: usize, pub access: u32, pub qp: Option<u32>, pub bytes: Vec<Byte> }

    /// The model.
    #[derive(Debug)]
    pub struct Model {
        pub(crate) limits: Limits, pub(crate) domains: Vec<bool>, pub(crate) regions: Vec<Region>, pub(crate) windows: Vec<Window>,
    }
}

fn need(condition: bool, no: No) -> Result<(), No> {
    if condition { Ok(()) } else { Err(no) }
}

/// The memory addresses of the requested bytes, if all of them exist.
fn select(bytes: &[Byte], addr: u64, len: u64, one_segment_only: bool) -> Result<Vec<Byte>, No> {
    need(u128::from(addr) + u128::from(len) <= u128::from(u64::MAX), No::Wraps)?;
    let names = || bytes.iter().map(|byte| byte.named);
    let near = Some(addr) >= names().min() && Some(addr + len - 1) <= names().max();
    let outside = if one_segment_only && near { No::CrossesSegments } else { No::OutOfRange };
    // The bytes are in the list in the order of the request.
    let asked_for = |row: &&[Byte]| {
        let one = row.iter().all(|byte| byte.segment == row[0].segment);
        (one || !one_segment_only) && row.iter().zip(addr..).all(|(byte, named)| byte.named == named)
    };
    bytes.windows(len as usize).find(asked_for).map(<[Byte]>::to_vec).ok_or(outside)
}

/// Atomic operations work on 8 contiguous bytes that start at a multiple of 8.
fn aligned(bytes: &[Byte], access: u32) -> Result<Vec<u64>, No> {
    let one = bytes.iter().all(|byte| byte.segment == bytes[0].segment);
    need(access != right::REMOTE_ATOMIC || one && bytes[0].real.is_multiple_of(8), No::Misaligned)?;
    Ok(bytes.iter().map(|byte| byte.real).collect())
}

/// Rights under the rules of verbs: local read is always on; remote write and atomics need local write.
fn allowed(access: u32, verbs: bool) -> Result<u32, No> {
    let changes = access & right::CHANGING != 0;
    need(!verbs || !changes || access & right::LOCAL_WRITE == right::LOCAL_WRITE, No::AccessNeeds)?;
    Ok(if verbs { access | right::SEND | right::WRITE } else { access })
}

impl Model {
    /// A device without objects.
    pub fn new(limits: Limits) -> Self {
        Self { limits, domains: vec![], regions: vec![], windows: vec![] }
    }

    fn domain(&self, domain: usize) -> Result<(), No> {
        need(self.domains.get(domain) == Some(&true), No::NoSuchDomain)
    }

    fn region(&mut self, region: usize) -> Result<&mut Region, No> {
        self.regions.get_mut(region).filter(|it| it.open).ok_or(No::NoSuchRegion)
    }

    fn bound_to(&self, region: usize) -> usize {
        self.windows.iter().filter(|it| it.bound.as_ref().is_some_and(|b| b.region == region)).count()
    }

    /// The number of the new domain.
    pub fn open_domain(&mut self) -> Result<usize, No> {
        need(self.domains.iter().filter(|open| **open).count() < self.limits.domains, No::Limit)?;
        self.domains.push(true);
        Ok(self.domains.len() - 1)
    }

    /// Closes a domain. Refused while it contains objects.
    pub fn close_domain(&mut self, domain: usize) -> Result<(), No> {
        self.domain(domain)?;
        let regions = self.regions.iter().any(|it| it.open && it.domain == domain);
        let windows = self.windows.iter().any(|it| it.open && it.domain == domain);
        need(!regions && !windows, No::Busy)?;
        self.domains[domain] = false;
        Ok(())
    }

    fn lay_out(&self, ranges: &[(u64, u64)], addressing: Addressing) -> Result<Vec<Byte>, No> {
        need(!ranges.is_empty() && ranges.iter().all(|range| range.1 > 0), No::Empty)?;
        need(ranges.len() <= self.limits.segments, No::Limit)?;
        let real = ranges.iter().zip(0..).flat_map(|(&(start, len), segment)| (0..len).map(move |i| (start + i, segment)));
        let all: Vec<(u64, usize)> = real.collect();
        let base = if let Addressing::Iova(base) = addressing { base } else { 0 };
        need(u128::from(base) + all.len() as u128 <= u128::from(u64::MAX), No::AddressWraps)?;
        let named = |real, at| if addressing == Addressing::Virtual { real } else { at };
        Ok(all.iter().zip(base..).map(|(&(real, segment), at)| Byte { named: named(real, at), real, segment }).collect())
    }

    fn admit(&mut self, new: Region) -> Result<usize, No> {
        let live = || self.regions.iter().filter(|it| it.open);
        let bytes = live().chain([&new]).map(|it| it.bytes.len() as u64).sum::<u64>();
        need(bytes <= self.limits.bytes, No::Limit)?;
        need(new.requested != Some(u64::MAX), No::KeyReserved)?;
        let taken = live().any(|it| it.domain == new.domain && it.requested == new.requested);
        need(new.requested.is_none() || !taken, No::KeyTaken)?;
        self.regions.push(new);
        Ok(self.regions.len() - 1)
    }

    /// The number of the new region.
    pub fn register(&mut self, ask: &Ask) -> Result<usize, No> {
        let bytes = self.lay_out(&ask.ranges, ask.addressing)?;
        let access = allowed(ask.access, ask.verbs)?;
        need(self.regions.iter().filter(|it| it.open).count() < self.limits.regions, No::Limit)?;
        self.domain(ask.domain)?;
        let (domain, needs_endpoint) = (ask.domain, ask.needs_endpoint);
        let disabled = ask.disabled || needs_endpoint;
        let one_segment_only = ask.addressing == Addressing::Virtual && ask.ranges.len() > 1;
        let requested = ask.requested.filter(|_| access & right::REMOTE != 0);
        let rest = Region { open: true, ..Region::default() };
        self.admit(Region { domain, access, disabled, needs_endpoint, bytes, one_segment_only, requested, ..rest })
    }

    /// Changes a region; returns the number of the region that replaces it.
    pub fn reregister(
        &mut self, region: usize, domain: Option<usize>, ranges: Option<(&[(u64, u64)], Addressing)>, access: Option<(u32, bool)>,
    ) -> Result<usize, No> {
        let bytes = ranges.map(|(ranges, how)| self.lay_out(ranges, how)).transpose()?;
        let access = access.map(|(access, verbs)| allowed(access, verbs)).transpose()?;
        let mut new = self.region(region)?.clone();
        need(self.bound_to(region) == 0, No::Busy)?;
        new.domain = domain.unwrap_or(new.domain);
        self.domain(new.domain)?;
        new.access = access.unwrap_or(new.access);
        new.bytes = bytes.unwrap_or(new.bytes);
        new.one_segment_only = ranges.map_or(new.one_segment_only, |(r, how)| how == Addressing::Virtual && r.len() > 1);
        new.requested = new.requested.filter(|_| new.access & right::REMOTE != 0);
        // The old region ends when the new one begins.
        self.regions[region].open = false;
        let number = self.admit(new);
        self.regions[region].open = number.is_err();
        number
    }

    /// Makes a disabled region usable.
    pub fn enable(&mut self, region: usize) -> Result<(), No> {
        let it = self.region(region)?;
        need(it.disabled, No::AlreadyEnabled)?;
        need(!it.needs_endpoint || it.endpoint.is_some(), No::NeedsEndpoint)?;
        (it.disabled, it.was_enabled) = (false, true);
        Ok(())
    }

    /// Binds an endpoint (or a counter) to a region, or removes that binding.
    pub fn bind_region(&mut self, region: usize, endpoint: bool, to: Option<u32>) -> Result<(), No> {
        let it = self.region(region)?;
        need(to.is_none() || !it.was_enabled, No::AlreadyEnabled)?;
        let place = if endpoint { &mut it.endpoint } else { &mut it.counter };
        need(to.is_none() || place.is_none() || *place == to, No::AlreadyBound)?;
        *place = to;
        Ok(())
    }

    /// Deregisters a region. Refused while windows, an endpoint or a counter are bound to it, unless `revoke` removes
    /// them all.
    pub fn deregister(&mut self, region: usize, revoke: bool) -> Result<(), No> {
        let windows = self.bound_to(region);
        let it = self.region(region)?;
        need(revoke || windows == 0 && it.endpoint.is_none() && it.counter.is_none(), No::Busy)?;
        it.open = false;
        self.unbind(|binding| binding.region == region);
        Ok(())
    }

    fn unbind(&mut self, which: impl Fn(&Binding) -> bool) {
        for window in &mut self.windows {
            window.bound.take_if(|binding| which(binding));
        }
    }

    /// The number of the new window.
    pub fn create_window(&mut self, domain: usize, type2: bool) -> Result<usize, No> {
        need(self.windows.iter().filter(|it| it.open).count() < self.limits.windows, No::Limit)?;
        self.domain(domain)?;
        self.windows.push(Window { open: true, domain, type2, keys: 1, ..Window::default() });
        Ok(self.windows.len() - 1)
    }

    fn window(&mut self, window: usize) -> Result<&mut Window, No> {
        self.windows.get_mut(window).filter(|it| it.open).ok_or(No::NoSuchWindow)
    }

    /// Unbinds and deallocates a window.
    pub fn deallocate_window(&mut self, window: usize) -> Result<(), No> {
        self.window(window).map(|it| (it.open, it.bound) = (false, None))
    }

    /// The key that the next bind will return (type 1, DAT), or the current key of a type 2 window.
    pub fn promise(&mut self, window: usize) -> Result<Name, No> {
        let it = self.window(window)?;
        if it.type2 {
            return Ok(Name::Type2(window, it.bits));
        }
        it.keys += 1;
        it.promised.insert(it.keys - 1);
        Ok(Name::Chosen(window, it.keys - 1))
    }

    /// Binds a window, and returns its new key. A bind that fails changes nothing, except that its reservation
    /// ends.
    pub fn bind(&mut self, ask: &Bind) -> Result<Name, No> {
        let it = self.window(ask.window)?;
        let promised = match ask.key {
            Some(Name::Chosen(window, key)) if !it.type2 && window == ask.window && it.promised.remove(&key) => Some(key),
            Some(_) if !it.type2 => return Err(No::ForeignKey),
            _ => None,
        };
        let bound = self.decide_bind(ask)?;
        let it = self.window(ask.window)?;
        match (ask.key, promised) {
            (Some(Name::Type2(_, bits)), _) if it.type2 => it.bits = bits,
            (_, Some(key)) => it.current = key,
            (_, None) if !it.type2 && bound.is_some() => (it.current, it.keys) = (it.keys, it.keys + 1),
            _ => {}
        }
        it.bound = bound;
        Ok(if it.type2 { Name::Type2(ask.window, it.bits) } else { Name::Chosen(ask.window, it.current) })
    }

    fn decide_bind(&mut self, ask: &Bind) -> Result<Option<Binding>, No> {
        let window = self.window(ask.window)?.clone();
        if ask.range.1 == 0 {
            need(!window.type2, No::ZeroLength)?;
            return need(ask.domain == window.domain, No::OtherDomain).map(|()| None);
        }
        need(ask.access & !right::REMOTE == 0, No::NotRemote)?;
        need(!ask.zero_based || window.type2, No::ZeroBasedWindow)?;
        if window.type2 {
            need(ask.key.is_some() && ask.qp.is_some(), No::KeyAndQpNeeded)?;
            need(matches!(ask.key, Some(Name::Type2(window, _)) if window == ask.window), No::ForeignKey)?;
            need(window.bound.is_none(), No::StillBound)?;
        }
        need(ask.domain == window.domain, No::OtherDomain)?;
        let region = self.region(ask.region)?.clone();
        need(region.domain == window.domain, No::OtherDomain)?;
        need(!region.disabled, No::Disabled)?;
        if ask.verbs {
            need(region.access & right::BIND != 0, No::RegionLacks)?;
            let writable = region.access & right::LOCAL_WRITE == right::LOCAL_WRITE;
            need(writable || ask.access & right::CHANGING == 0, No::RegionLacks)?;
            need(region.bytes[0].named != 0, No::ZeroBasedRegion)?;
        }
        let wraps_is_outside = |no| if no == No::Wraps { No::OutOfRange } else { no };
        let mut bytes = select(&region.bytes, ask.range.0, ask.range.1, region.one_segment_only).map_err(wraps_is_outside)?;
        for (byte, number) in bytes.iter_mut().zip(0..) {
            byte.named = if ask.zero_based { number } else { byte.named };
        }
        Ok(Some(Binding { region: ask.region, access: ask.access, qp: ask.qp.filter(|_| window.type2), bytes }))
    }

    /// The number of the region or window that a key names, as long as it is valid.
    fn meaning(&self, key: Name) -> Result<usize, No> {
        let (number, alive) = match key {
            Name::Never | Name::Requested(_) => return Err(No::UnknownKey),
            Name::Local(region) | Name::Remote(region) => (region, self.regions[region].open),
            Name::Type2(window, _) => (window, self.windows[window].open),
            Name::Chosen(window, key) => {
                let it = &self.windows[window];
                (window, it.open && (key == it.current || it.promised.contains(&key)))
            }
        };
        need(alive, No::Stale).map(|()| number)
    }

    /// Unbinds a type 2 window through its current key, for its queue pair.
    pub fn invalidate(&mut self, key: Name, domain: usize, qp: u32) -> Result<(), No> {
        let number = self.meaning(key)?;
        if let Name::Local(_) | Name::Remote(_) = key {
            need(self.regions[number].domain == domain, No::OtherDomain)?;
            return Err(No::NotAWindow);
        }
        let it = &mut self.windows[number];
        need(it.domain == domain, No::OtherDomain)?;
        need(it.type2, No::WindowKind)?;
        need(key == Name::Type2(number, it.bits), No::Stale)?;
        need(it.bound.as_ref().is_none_or(|bound| bound.qp == Some(qp)), No::WrongEndpoint)?;
        it.bound = None;
        Ok(())
    }

    /// Destroys a queue pair: its windows are unbound, and its regions become unreachable.
    pub fn forget_endpoint(&mut self, qp: u32) {
        self.unbind(|binding| binding.qp == Some(qp));
        for region in &mut self.regions {
            region.endpoint.take_if(|to| *to == qp);
        }
    }

    /// The addresses that an access which needs the right `access` may touch: a peer's over `qp`, or (no `qp`) our own.
    pub fn check(&self, domain: usize, qp: Option<u32>, key: Name, addr: u64, len: u64, access: u32) -> Result<Vec<u64>, No> {
        if len == 0 {
            return Ok(vec![]);
        }
        let number = match (key, qp) {
            (Name::Requested(wanted), Some(_)) => {
                let named = |it: &Region| it.open && it.domain == domain && it.requested == Some(wanted);
                self.regions.iter().position(named).ok_or(No::UnknownKey)?
            }
            _ => self.meaning(key)?,
        };
        let local = matches!(key, Name::Local(_));
        need(!local || qp.is_none(), No::LKey)?;
        need(local || qp.is_some(), No::RemoteKey)?;
        if let Name::Local(_) | Name::Remote(_) | Name::Requested(_) = key {
            let it = &self.regions[number];
            need(it.domain == domain, No::OtherDomain)?;
            need(!it.disabled, No::Disabled)?;
            need(!it.needs_endpoint || local || it.endpoint == qp, No::WrongEndpoint)?;
            need(it.access & access == access, No::Right)?;
            return aligned(&select(&it.bytes, addr, len, it.one_segment_only)?, access);
        }
        let it = &self.windows[number];
        need(it.domain == domain, No::OtherDomain)?;
        let unused = matches!(key, Name::Chosen(_, key) if key != it.current);
        let bound = it.bound.as_ref().filter(|_| !unused).ok_or(No::Unbound)?;
        need(!matches!(key, Name::Type2(_, bits) if bits != it.bits), No::Stale)?;
        need(bound.qp.is_none_or(|owner| Some(owner) == qp), No::WrongEndpoint)?;
        need(bound.access & access == access, No::Right)?;
        let region = &self.regions[bound.region];
        need(!region.needs_endpoint || region.endpoint == qp, No::WrongEndpoint)?;
        aligned(&select(&bound.bytes, addr, len, false)?, access)
    }
}
