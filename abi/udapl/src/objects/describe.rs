//! The objects of an IA that exist only in this front end, for inspection (`rkey ls PID`): EPs with their DAT states, EVDs, PSPs and
//! RSPs. A description contains no contents of events or messages.

use crate::handles::object::{Held, Kind};
use crate::objects::ep::Ep;
use crate::objects::evd::Evd;
use crate::objects::ia::Ia;
use crate::objects::service::{Psp, Rsp, Service};
use rkey_device::describe::{ObjectView, Objects};
use rkey_kit::Object;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Adds the objects of an IA. Runs in the engine thread: it takes no handle of an object, so it cannot drop the last one.
pub fn describe(ia: &Weak<Ia>, until: Instant, all: &mut Objects) {
    let here = |other: &Arc<Ia>| std::ptr::eq(Arc::as_ptr(other), Weak::as_ptr(ia));
    each::<Ep>(|ep| {
        if here(ep.ia()) {
            all.add(|| view("EP", ep.handle, ep.in_words()));
        }
    });
    each::<Evd>(|evd| {
        if here(evd.ia()) {
            all.add(|| view("EVD", evd.handle, evd.in_words(until)));
        }
    });
    let mut add = |kind, service: &Service| {
        if here(service.ia()) {
            all.add(|| view(kind, service.handle, service.in_words()));
        }
    };
    each::<Psp>(|psp| add("PSP", &psp.0));
    each::<Rsp>(|rsp| add("RSP", rsp.service()));
}

fn each<T: Kind>(mut look: impl FnMut(&T))
where
    Held<T>: Object,
{
    Held::<T>::pool().find_map(|held| {
        look(held.it());
        None::<()>
    });
}

fn view(kind: &str, handle: usize, state: String) -> ObjectView {
    ObjectView {
        kind: kind.to_owned(),
        name: format!("{handle:#x}"),
        state,
    }
}
