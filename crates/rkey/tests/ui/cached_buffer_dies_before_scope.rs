//! Cached memory stays registered until the scope ends, so it must live that long.

use rkey::Device;

fn main() -> rkey::Result<()> {
    let domain = Device::open()?.domain()?;
    domain.scope(|scope| {
        let buffer = vec![0u8; 64];
        drop(scope.cached(&buffer)?);
        Ok(())
    })
}
