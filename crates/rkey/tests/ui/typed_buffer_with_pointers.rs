//! Only bytes and plain words can be registered: a peer could write any bits into a value.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let buffer: Vec<String> = vec!["a pointer inside".into()];
    let region = Device::open()?.domain()?.register(buffer, Access::REMOTE_WRITE)?;
    drop(region);
    Ok(())
}
