//! What inspections (`rkey ls PID`) show of an IA.

use crate::world::*;
use daplrkey::handles::object::find;
use daplrkey::objects::ia::Ia;
use daplrkey::sys::*;
use rkey_device::Device;
use std::ptr::null_mut;

fn device(world: &World) -> Device {
    // SAFETY: a live handle.
    unsafe { find::<Ia>(world.ia) }.unwrap().device.clone()
}

/// The state of the object with this handle.
fn state(device: &Device, kind: &str, handle: Handle) -> Option<String> {
    let name = format!("{:#x}", handle as usize);
    let mut all = device.inspect().unwrap().objects.into_iter();
    let found = all.find(|object| object.name == name)?;
    assert_eq!(found.kind, kind);
    Some(found.state)
}

#[test]
fn an_inspection_shows_eps_evds_and_service_points_with_their_states() {
    let (one, two) = (World::open(), World::open());
    let (far, near) = (device(&one), device(&two));
    let (active, passive) = (one.end(), two.end());
    let (psp, evd, qualifier) = two.psp();
    let ep = |handle| state(&near, "EP", handle).unwrap();
    assert!(ep(passive.ep).starts_with("unconnected; queue pair 0x"));
    let service = state(&near, "PSP", psp).unwrap();
    let place = format!("qualifier {qualifier:#x}; EVD {:#x}; ", evd as usize);
    assert_eq!(service, place.clone() + "unanswered requests: 0");
    one.connect(&active, qualifier, b"");
    let cr = two.request(evd);
    let active_ep = state(&far, "EP", active.ep).unwrap();
    assert!(active_ep.starts_with("active connection pending; queue pair 0x"));
    let service = state(&near, "PSP", psp).unwrap();
    assert_eq!(service, place + "unanswered requests: 1");
    ok!(cr_accept_func(cr, passive.ep, 0, null_mut()));
    expect(active.connect, CONNECTION_EVENT_ESTABLISHED);
    expect(passive.connect, CONNECTION_EVENT_ESTABLISHED);
    assert!(ep(passive.ep).starts_with("connected; queue pair 0x"));
    // An EVD: its kinds of events, how many wait, and the CNO that it notifies.
    let software = two.evd(8, EVD_SOFTWARE_FLAG | EVD_CR_FLAG);
    let mut cno = null_mut();
    let agent = OsWaitProxyAgent {
        instance_data: null_mut(),
        proxy_agent_func: None,
    };
    ok!(cno_create_func(two.ia, agent, &raw mut cno));
    let kinds = "software, connection requests; ";
    let of = |rest: &str| Some(format!("{kinds}{rest}"));
    assert_eq!(state(&near, "EVD", software), of("0 of 8 events"));
    let mut event = blank();
    event.event_number = SOFTWARE_EVENT;
    ok!(evd_post_se_func(software, &raw const event));
    ok!(evd_disable_func(software));
    ok!(evd_modify_cno_func(software, cno));
    let notifies = format!("1 of 8 events; disabled; notifies CNO {:#x}", cno as usize);
    assert_eq!(state(&near, "EVD", software), of(&notifies));
}
