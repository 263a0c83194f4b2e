//! The lengths of structures in each version of libfabric's binary interface. Later versions append fields, so a
//! structure of a program may be shorter than ours, and ours serves every program.

use rkey_fi::sys::{
    DomainAttr, EpAttr, FabricAttr, Info, LongDomainAttr, LongEpAttr, RxAttr, TxAttr,
};
use std::mem::offset_of;

/// How many bytes of each structure a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    pub(crate) info: usize,
    pub(crate) tx: usize,
    pub(crate) rx: usize,
    pub(crate) ep: usize,
    pub(crate) domain: usize,
    pub(crate) fabric: usize,
}

/// libfabric 1.0 to 1.4.
pub const FABRIC_1_0: Lengths = Lengths {
    info: offset_of!(Info, nic),
    tx: offset_of!(TxAttr, tclass),
    rx: size_of::<RxAttr>(),
    ep: offset_of!(EpAttr, auth_key_size),
    domain: offset_of!(DomainAttr, cntr_cnt),
    fabric: offset_of!(FabricAttr, api_version),
};
/// libfabric 1.5: authorization keys, the API version.
pub const FABRIC_1_1: Lengths = Lengths {
    ep: size_of::<EpAttr>(),
    domain: offset_of!(DomainAttr, tclass),
    fabric: size_of::<FabricAttr>(),
    ..FABRIC_1_0
};
/// libfabric 1.7: the network interface.
pub const FABRIC_1_2: Lengths = Lengths {
    info: size_of::<Info>(),
    ..FABRIC_1_1
};
/// libfabric 1.8: traffic classes.
pub const FABRIC_1_3: Lengths = Lengths {
    tx: size_of::<TxAttr>(),
    domain: size_of::<DomainAttr>(),
    ..FABRIC_1_2
};
/// libfabric 1.20: authorization keys of address vectors.
pub const FABRIC_1_7: Lengths = Lengths {
    domain: offset_of!(LongDomainAttr, max_group_id),
    ..FABRIC_1_3
};
/// libfabric 2.0: groups.
pub const FABRIC_1_8: Lengths = Lengths {
    domain: offset_of!(LongDomainAttr, max_cntr_value),
    ..FABRIC_1_7
};
/// libfabric 2.5: the largest values of counters.
pub const FABRIC_1_9: Lengths = Lengths {
    domain: offset_of!(LongDomainAttr, max_xpu_ctx_cnt),
    ..FABRIC_1_8
};
/// libfabric 2.6: contexts of accelerators. The longest structures.
pub const FABRIC_1_10: Lengths = Lengths {
    ep: size_of::<LongEpAttr>(),
    domain: size_of::<LongDomainAttr>(),
    ..FABRIC_1_9
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_at_least_the_fields_of_its_predecessor() {
        let all = [
            FABRIC_1_0,
            FABRIC_1_1,
            FABRIC_1_2,
            FABRIC_1_3,
            FABRIC_1_7,
            FABRIC_1_8,
            FABRIC_1_9,
            FABRIC_1_10,
        ];
        let lengths = |it: &Lengths| [it.info, it.tx, it.rx, it.ep, it.domain, it.fabric];
        for pair in all.windows(2) {
            let (old, new) = (lengths(&pair[0]), lengths(&pair[1]));
            assert!(old.iter().zip(new).all(|(old, new)| *old <= new));
            assert_ne!(old, new);
        }
        // These are the lengths in the headers of these versions.
        assert_eq!(lengths(&FABRIC_1_0), [112, 72, 64, 80, 120, 28]);
        assert_eq!(lengths(&FABRIC_1_3), [120, 80, 64, 96, 192, 32]);
        assert_eq!(lengths(&FABRIC_1_10), [120, 80, 64, 104, 232, 32]);
    }
}
