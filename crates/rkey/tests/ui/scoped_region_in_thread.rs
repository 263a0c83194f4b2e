//! A region over borrowed memory cannot go to a thread that may outlive the scope.

use rkey::{Access, Device};

fn main() -> rkey::Result<()> {
    let domain = Device::open()?.domain()?;
    let mut buffer = vec![0u8; 64];
    domain.scope(|scope| {
        let region = scope.register(&mut buffer, Access::REMOTE_WRITE)?;
        std::thread::spawn(move || region.write(0, b"late"));
        Ok(())
    })
}
