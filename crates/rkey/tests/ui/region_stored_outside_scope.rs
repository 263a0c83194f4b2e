//! Nor can it be put into something that lives longer than the scope.

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
