//! A region that owns its buffer may live forever, so borrowed memory needs a scope.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let mut buffer = [0u8; 64];
    let region = Device::open()?.domain()?.register(&mut buffer[..], Access::REMOTE_WRITE)?;
    drop(region);
    Ok(())
}
