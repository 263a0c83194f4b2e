//! Memory privileges: `DAT_MEM_PRIV_*`, and the device's rights.

use crate::handles::fail::{Fail, Result};
use crate::sys::consts::*;
use rkey_device::core::Access;

/// Each flag and its rights.
const FLAGS: [(dat_mem_priv_flags, Access); 5] = [
    (MEM_PRIV_LOCAL_READ_FLAG, Access::LOCAL_READ),
    (MEM_PRIV_REMOTE_READ_FLAG, Access::REMOTE_READ),
    (MEM_PRIV_LOCAL_WRITE_FLAG, Access::LOCAL_WRITE),
    (MEM_PRIV_REMOTE_WRITE_FLAG, Access::REMOTE_WRITE),
    (IB_MEM_PRIV_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
];

/// Converts privileges to rights.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`: unknown flags; `number` is the argument's number.
pub fn rights(number: u32, privileges: dat_mem_priv_flags) -> Result<Access> {
    let known = FLAGS.iter().fold(0, |all, (flag, _)| all | flag);
    if privileges & !known != 0 {
        return Err(Fail::argument(number));
    }
    let given = FLAGS.iter().filter(|(flag, _)| privileges & flag != 0);
    Ok(given.fold(Access::empty(), |all, (_, right)| all | *right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_privilege_flag_stands_for_its_rights() {
        let all = rights(1, MEM_PRIV_ALL_FLAG).unwrap();
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        assert_eq!(all, Access::LOCAL_READ | Access::LOCAL_WRITE | remote);
        assert_eq!(all & Access::REMOTE, remote, "0x33 contains no atomics");
        assert_eq!(rights(1, MEM_PRIV_NONE_FLAG), Ok(Access::empty()));
        assert_eq!(rights(6, 0x80), Err(Fail::argument(6)));
    }
}
