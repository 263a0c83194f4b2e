//! Flow steering: which raw frames a raw packet queue pair receives.
//!
//! A rule becomes a pattern for the first bytes of a frame. Priorities have no effect: every queue pair with
//! a matching rule gets the frame. VLAN tags, IP options, tunnels and actions are not supported; a rule that
//! uses them is refused with `EOPNOTSUPP`.

#![allow(unsafe_code)]
// UNSAFETY: C functions, and lists of structures of different sizes that C programs pass.

use crate::device::port::PORT;
use crate::object::{Object, find, input, insert, remove};
use crate::queues::modify::Service;
use crate::queues::qp::QpObject;
use crate::sys::{Context, Flow as FlowHead, FlowAttr, Qp};
use crate::translate::errno;
use rkey_device::engine::Flow;
use rkey_kit::{Errno, c_call};
use std::cell::UnsafeCell;
use std::ffi::c_int;

const ETH: u32 = 0x20;
const IPV4: u32 = 0x30;
const IPV6: u32 = 0x31;
const IPV4_EXT: u32 = 0x32;
const TCP: u32 = 0x40;
const UDP: u32 = 0x41;

/// Offsets in a frame: of the Ethernet type, and of the headers of layers 3 and 4.
const ETHER_TYPE: usize = 12;
const L3: usize = 14;
const L4_AFTER_IPV4: usize = L3 + 20;
const L4_AFTER_IPV6: usize = L3 + 40;

/// Limits for the size of a layer's specification, in bytes: its type and size alone, and more than any layer needs.
const LAYER_MIN: u16 = 6;
const LAYER_MAX: u16 = 256;

/// A rule, as the program sees it.
#[repr(C)]
pub struct FlowObject {
    c: UnsafeCell<FlowHead>,
    qp: *mut Qp,
    number: u32,
}

// SAFETY: the C structure is written only while the object is created.
unsafe impl Sync for FlowObject {}
// SAFETY: holds handles, which are validated before use.
unsafe impl Send for FlowObject {}

rkey_kit::object!(FlowObject, c: FlowHead, 1 << 16);

/// A pattern under construction.
#[derive(Default)]
struct Pattern {
    flow: Flow,
    /// Where the header of layer 4 begins, once the IP version is known.
    l4: Option<usize>,
}

impl Pattern {
    /// Requires the bits under the mask to match at an offset of the frame.
    fn set(&mut self, at: usize, value: &[u8], mask: &[u8]) -> Result<(), Errno> {
        let Flow {
            value: values,
            mask: masks,
        } = &mut self.flow;
        for (index, (&value, &mask)) in value.iter().zip(mask).enumerate() {
            let at = at + index;
            if mask == 0 {
                continue;
            }
            if values.len() <= at {
                values.resize(at + 1, 0);
                masks.resize(at + 1, 0);
            }
            let both = masks[at] & mask;
            if values[at] & both != value & both {
                return Err(Errno::INVAL); // two layers contradict each other
            }
            values[at] |= value & mask;
            masks[at] |= mask;
        }
        Ok(())
    }

    fn exactly(&mut self, at: usize, value: &[u8]) -> Result<(), Errno> {
        self.set(at, value, &vec![0xff; value.len()])
    }

    fn add(&mut self, kind: u32, spec: &[u8]) -> Result<(), Errno> {
        // The value and the mask follow the type and the size, aligned for their fields.
        let (at, len) = match kind {
            ETH => (6, 16),
            IPV4 => (8, 8),
            IPV4_EXT => (8, 12),
            IPV6 => (8, 40),
            TCP | UDP => (6, 4),
            _ => return Err(Errno::OPNOTSUPP),
        };
        let value = spec.get(at..at + len).ok_or(Errno::INVAL)?;
        let mask = spec.get(at + len..at + 2 * len).ok_or(Errno::INVAL)?;
        match kind {
            ETH => self.eth(value, mask),
            IPV4 | IPV4_EXT => self.ipv4(value, mask),
            IPV6 => self.ipv6(value, mask),
            _ => self.ports(kind, value, mask),
        }
    }

    fn eth(&mut self, value: &[u8], mask: &[u8]) -> Result<(), Errno> {
        if mask[14..16] != [0, 0] {
            return Err(Errno::OPNOTSUPP);
        }
        self.set(0, &value[..14], &mask[..14])
    }

    fn ipv4(&mut self, value: &[u8], mask: &[u8]) -> Result<(), Errno> {
        self.exactly(ETHER_TYPE, &[0x08, 0x00])?;
        self.exactly(L3, &[0x45])?;
        self.set(L3 + 12, &value[..8], &mask[..8])?;
        if let (&[proto, tos, ttl, _], &[proto_mask, tos_mask, ttl_mask, flags_mask]) =
            (&value[8..], &mask[8..])
        {
            if flags_mask != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            self.set(L3 + 9, &[proto], &[proto_mask])?;
            self.set(L3 + 1, &[tos], &[tos_mask])?;
            self.set(L3 + 8, &[ttl], &[ttl_mask])?;
        }
        self.l4 = Some(L4_AFTER_IPV4);
        Ok(())
    }

    fn ipv6(&mut self, value: &[u8], mask: &[u8]) -> Result<(), Errno> {
        self.exactly(ETHER_TYPE, &[0x86, 0xdd])?;
        // Version, traffic class and flow label share the first word.
        let word = |filter: &[u8], version: u32| {
            let label = u32::from_be_bytes([0, filter[33] & 0xf, filter[34], filter[35]]);
            (version << 28 | u32::from(filter[37]) << 20 | label).to_be_bytes()
        };
        self.set(L3, &word(value, 6), &word(mask, 0xf))?;
        self.set(L3 + 6, &value[36..37], &mask[36..37])?;
        self.set(L3 + 7, &value[38..39], &mask[38..39])?;
        self.set(L3 + 8, &value[..32], &mask[..32])?;
        self.l4 = Some(L4_AFTER_IPV6);
        Ok(())
    }

    fn ports(&mut self, kind: u32, value: &[u8], mask: &[u8]) -> Result<(), Errno> {
        let l4 = self.l4.ok_or(Errno::INVAL)?;
        let next_header = if l4 == L4_AFTER_IPV4 { L3 + 9 } else { L3 + 6 };
        self.exactly(next_header, &[if kind == TCP { 6 } else { 17 }])?;
        // The filter has the destination port first, the header the source port.
        self.set(l4, &value[2..4], &mask[2..4])?;
        self.set(l4 + 2, &value[..2], &mask[..2])
    }
}

/// The pattern for a list of layers.
fn pattern(count: u8, mut specs: &[u8]) -> Result<Flow, Errno> {
    let mut pattern = Pattern::default();
    for _ in 0..count {
        let kind = specs.get(..4).and_then(|b| b.try_into().ok());
        let size = specs.get(4..6).and_then(|b| b.try_into().ok());
        let (kind, size) = kind.zip(size).ok_or(Errno::INVAL)?;
        let size = usize::from(u16::from_ne_bytes(size));
        let spec = specs.get(..size).ok_or(Errno::INVAL)?;
        pattern.add(u32::from_ne_bytes(kind), spec)?;
        specs = &specs[size..];
    }
    Ok(pattern.flow)
}

/// The layers that follow a rule. Each states its own length. The size in the rule is ignored, as by other
/// implementations: some programs set it to the size without layers.
///
/// # Safety
/// `num_of_specs` layers follow the rule in memory.
unsafe fn layers(attr: &FlowAttr) -> Result<Vec<u8>, Errno> {
    let mut at = (&raw const *attr).wrapping_add(1).cast::<u8>();
    let mut all = Vec::new();
    for _ in 0..attr.num_of_specs {
        // SAFETY: a layer begins here with its type and size.
        let size = unsafe { at.wrapping_add(4).cast::<u16>().read_unaligned() };
        if !(LAYER_MIN..=LAYER_MAX).contains(&size) {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller guarantees that the layer has this many bytes.
        all.extend_from_slice(unsafe { std::slice::from_raw_parts(at, size.into()) });
        at = at.wrapping_add(size.into());
    }
    Ok(all)
}

/// `ibv_create_flow`.
///
/// # Safety
/// The layers of the rule follow it in memory; see [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn create_flow(qp: *mut Qp, attr: *mut FlowAttr) -> *mut FlowHead {
    const NORMAL: c_int = 0;
    const ALL_DEFAULT: c_int = 1;
    c_call(|| {
        // SAFETY: `find` validates the handle; `input` refuses null; the caller guarantees the rest.
        let (object, attr) = unsafe { (find::<QpObject>(qp)?, input(attr)?) };
        if attr.comp_mask != 0 || u32::from(attr.port) != PORT {
            return Err(Errno::INVAL);
        }
        if object.service != Service::Raw || attr.flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let flow = match attr.kind {
            // SAFETY: the caller guarantees that the layers follow the rule.
            NORMAL => pattern(attr.num_of_specs, &unsafe { layers(attr)? })?,
            ALL_DEFAULT => Flow::default(),
            _ => return Err(Errno::OPNOTSUPP),
        };
        let number = object.qp.add_flow(flow).map_err(errno::from)?;
        let c = UnsafeCell::new(FlowHead {
            comp_mask: 0,
            // SAFETY: the queue pair is live.
            context: unsafe { (*qp).context },
            handle: number,
        });
        insert(FlowObject { c, qp, number }).inspect_err(|_| {
            let _ = object.qp.remove_flow(number);
        })
    })
}

/// `ibv_destroy_flow`.
///
/// # Safety
/// No other thread may use the rule.
pub unsafe extern "C" fn destroy_flow(flow: *mut FlowHead) -> c_int {
    c_call(|| {
        // SAFETY: `find` and `remove` validate the handles; a queue pair is not destroyed while it has rules.
        unsafe {
            let object = find::<FlowObject>(flow)?;
            if let Ok(qp) = find::<QpObject>(object.qp) {
                qp.qp.remove_flow(object.number).map_err(errno::from)?;
            }
            remove::<FlowObject>(flow)?;
        }
        Ok(0)
    })
}

/// Destroys the remaining flow rules of a context that is being closed.
///
/// # Safety
/// No object of the context may be used afterwards.
pub unsafe fn sweep(context: *mut Context) {
    // SAFETY: the caller guarantees that the objects are unused.
    unsafe {
        for object in FlowObject::pool().live(|flow| (*flow.c.get()).context == context) {
            let _gone = remove::<FlowObject>(object.cast());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kind: u32, at: usize, value: &[u8], mask: &[u8]) -> Vec<u8> {
        let size = (at + value.len() + mask.len()).next_multiple_of(4);
        let mut out = kind.to_ne_bytes().to_vec();
        out.extend((size as u16).to_ne_bytes());
        out.resize(at, 0);
        out.extend(value);
        out.extend(mask);
        out.resize(size, 0);
        out
    }

    fn takes(flow: &Flow, frame: &[u8]) -> bool {
        let all = flow.mask.iter().zip(&flow.value).zip(frame);
        frame.len() >= flow.mask.len()
            && all
                .into_iter()
                .all(|((mask, value), byte)| byte & mask == value & mask)
    }

    /// An IPv4 packet with UDP ports 7 and 9.
    fn udp() -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[..6].fill(0xaa);
        frame[6..12].fill(0xbb);
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[23] = 17;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[34..38].copy_from_slice(&[0, 7, 0, 9]);
        frame
    }

    #[test]
    fn flow_specs_become_a_pattern_that_matches_frames() {
        let ip = spec(IPV4, 8, &[10, 0, 0, 1, 10, 0, 0, 2], &[0xff; 8]);
        let ports = spec(UDP, 6, &[0, 9, 0, 7], &[0xff; 4]);
        let flow = pattern(2, &[ip.clone(), ports].concat()).unwrap();
        assert!(takes(&flow, &udp()));
        for (at, byte) in [
            (12, 9),
            (14, 0x46),
            (23, 6),
            (29, 3),
            (33, 3),
            (35, 8),
            (37, 8),
        ] {
            let mut other = udp();
            other[at] = byte;
            assert!(!takes(&flow, &other), "byte {at}");
        }
        let mut other = udp();
        (other[0], other[15], other[40]) = (1, 1, 1);
        assert!(takes(&flow, &other), "the rule masks these bytes out");
        let tcp = spec(TCP, 6, &[0, 9, 0, 7], &[0xff; 4]);
        assert!(!takes(&pattern(2, &[ip, tcp].concat()).unwrap(), &udp()));
    }

    #[test]
    fn ipv6_and_ethernet_layers_match_their_fields() {
        let mut value = vec![0; 40];
        value[..16].fill(1);
        value[16..32].fill(2);
        value[36] = 6;
        let mut mask = vec![0; 40];
        mask[..32].fill(0xff);
        mask[36] = 0xff;
        let mut eth = [[0xaa; 6], [0xbb; 6]].concat();
        eth.extend([0x86, 0xdd, 0, 0]);
        let mut eth_mask = vec![0xff; 14];
        eth_mask.extend([0, 0]);
        let specs = [spec(ETH, 6, &eth, &eth_mask), spec(IPV6, 8, &value, &mask)].concat();
        let flow = pattern(2, &specs).unwrap();
        let mut frame = vec![0; 60];
        frame[..6].fill(0xaa);
        frame[6..12].fill(0xbb);
        frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x6f]);
        frame[20] = 6;
        frame[22..38].fill(1);
        frame[38..54].fill(2);
        assert!(takes(&flow, &frame));
        frame[14] = 0x4f;
        assert!(!takes(&flow, &frame), "the IP version differs");
    }

    #[test]
    fn contradictory_and_unknown_flow_specs_are_refused() {
        let ip = spec(IPV4, 8, &[0; 8], &[0; 8]);
        let ports = spec(UDP, 6, &[0; 4], &[0xff; 4]);
        let not_ip = spec(
            ETH,
            6,
            &[0x11; 16],
            &[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0],
        );
        for (count, specs, errno) in [
            (1, ports, Errno::INVAL),
            (2, [not_ip, ip.clone()].concat(), Errno::INVAL),
            (2, ip.clone(), Errno::INVAL),
            (1, ip[..20].to_vec(), Errno::INVAL),
            (1, spec(0x34, 8, &[0; 8], &[0; 8]), Errno::OPNOTSUPP),
            (1, spec(ETH, 6, &[0; 16], &[0xff; 16]), Errno::OPNOTSUPP),
            (1, vec![0x30, 0, 0, 0, 0, 0], Errno::INVAL),
        ] {
            assert_eq!(pattern(count, &specs).unwrap_err(), errno, "{specs:?}");
        }
        assert_eq!(pattern(0, &[]), Ok(Flow::default()));
    }
}
