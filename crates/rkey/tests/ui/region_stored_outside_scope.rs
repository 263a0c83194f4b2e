//! A region over borrowed memory cannot be stored in a value that outlives its scope.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let domain = Device::open()?.domain()?;
    let mut buffer = vec![0u8; 64];
    let mut kept = None;
    domain.scope(|scope| {
        kept = scope.register(&mut buffer, Access::REMOTE_WRITE).ok();
    });
    drop(kept);
    Ok(())
}
