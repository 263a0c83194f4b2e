//! Requests about windows; checks that the device's key and the model's correspond.

use super::{World, range};
use crate::answers::{bind_no, core_no, denial_no};
use rkey_core::*;
use rkey_model as model;
use rkey_model::{Name, right};

impl World {
    pub(super) fn create_window(&mut self) {
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

    pub(super) fn deallocate_window(&mut self) {
        let Some(number) = self.some_window() else {
            return;
        };
        let core = self.core.deallocate_window(self.windows[number].0);
        let model = self.model.deallocate_window(number);
        self.same("deallocate window", number, core, core_no, model);
    }

    pub(super) fn promise(&mut self) {
        let Some(number) = self.some_window() else {
            return;
        };
        let core = self.core.next_window_key(self.windows[number].0);
        let model = self.model.promise(number);
        if let Some((key, name)) = self.same("promise", number, core, bind_no, model) {
            self.agree_on(name, key);
        }
    }

    pub(super) fn bind(&mut self) {
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

    /// Checks the key that the device chose for a window: it must correspond to the model's, and
    /// differ from all earlier keys.
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

    pub(super) fn invalidate(&mut self) {
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

    pub(super) fn forget_endpoint(&mut self) {
        let qp = self.some_qp();
        self.log.push(format!("forget endpoint {qp}"));
        self.core.forget_endpoint(qp);
        self.model.forget_endpoint(qp);
    }
}
