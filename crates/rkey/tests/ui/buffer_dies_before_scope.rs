//! Memory that is freed before the scope ends cannot be registered in it.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let domain = Device::open()?.domain()?;
    domain.scope(|scope| {
        let mut inner = vec![0u8; 64];
        let region = scope.register(&mut inner, Access::REMOTE_WRITE)?;
        std::mem::forget(region);
        Ok(())
    })
}
