//! A region is gone after `deregister`.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let region = Device::open()?.domain()?.register(vec![0u8; 64], Access::REMOTE_WRITE)?;
    let buffer = region.deregister()?;
    region.write(0, &buffer)
}
