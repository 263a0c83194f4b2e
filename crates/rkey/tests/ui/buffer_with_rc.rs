//! A buffer that cannot go to another thread cannot be registered: the device's thread accesses it.

use rkey::{Access, Device};
use std::rc::Rc;

fn main() -> rkey::Result<()> {
    let buffer: Rc<Vec<u8>> = Rc::new(vec![0u8; 64]);
    let region = Device::open()?.domain()?.register(buffer, Access::REMOTE_WRITE)?;
    drop(region);
    Ok(())
}
