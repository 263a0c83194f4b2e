//! A buffer that is borrowed for a scope cannot be looked at while it is registered.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let domain = Device::open()?.domain()?;
    let mut buffer = vec![0u8; 64];
    domain.scope(|scope| {
        let region = scope.register(&mut buffer, Access::REMOTE_WRITE)?;
        println!("{}", buffer[0]);
        region.key(..).map(|_| ())
    })
}
