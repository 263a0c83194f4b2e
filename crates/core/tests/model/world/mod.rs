//! Device and model side by side.
//!
//! Every request goes to both, and [`World::same`] compares the two answers. Requests are random, but
//! `choice.rs` makes most of them name existing objects or near misses. Each kind of object has a file with its
//! requests.

mod checks;
mod choice;
mod domains;
mod random;
mod regions;
mod windows;

use random::Random;
use rkey_base::range::VaRange;
use rkey_core::*;
use rkey_model as model;
use rkey_model::{Model, Name, No};
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

const DOMAINS: u64 = 3;

/// Device and model side by side.
pub(crate) struct World {
    pub(crate) random: Random,
    core: Arc<Protection>,
    section: Section,
    /// Magazines, as if several threads registered and deregistered.
    magazines: [Magazine; 2],
    model: Model,
    domains: Vec<DomainId>,
    regions: Vec<Region>,
    /// The ranges and the first request address of each region, for requests that name it.
    aims: Vec<(Vec<(u64, u64)>, u64)>,
    /// The domain of each region and each window, for requests that can be granted.
    region_domains: Vec<usize>,
    window_domains: Vec<usize>,
    /// The last binding of each window: region, first address of the window, bytes, queue pair, and key.
    bound: HashMap<usize, (usize, u64, u64, Option<u32>, Name)>,
    windows: Vec<(WindowId, Key, bool)>,
    chosen: HashMap<(usize, usize), Key>,
    names: Vec<Name>,
    pub(crate) log: Vec<String>,
    /// How many times each kind of request got each kind of answer.
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
            segments: 3,
        };
        let core = Arc::new(Protection::new(
            limits,
            Secrets([0; 4].map(|_: i32| random.next())),
        ));
        Self {
            section: core.section().unwrap(),
            magazines: [core.magazine(), core.magazine()],
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

    /// Compares an answer of the device with one of the model, and returns the device's.
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
            8 => self.bind_region(),
            9 => self.reregister(),
            10 | 11 => self.deregister(),
            12 | 13 => self.create_window(),
            14 => self.deallocate_window(),
            15..=18 => self.bind(),
            19 => self.promise(),
            20 | 21 => self.invalidate(),
            22 if self.random.one_in(2) => self.forget_endpoint(),
            22..=28 => self.check_remote(),
            _ => self.check_local(),
        }
    }

    fn rules(verbs: bool) -> Rules {
        if verbs { Rules::VERBS } else { Rules::empty() }
    }
}
