//! A region over borrowed memory cannot be carried out of its scope.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let domain = Device::open()?.domain()?;
    let mut buffer = vec![0u8; 64];
    let region = domain.scope(|scope| scope.register(&mut buffer, Access::REMOTE_WRITE))?;
    region.write(0, b"late")
}
