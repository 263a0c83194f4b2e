//! Memory that is published from a shared borrow cannot be written meanwhile.

use rkey::Device;

fn main() -> rkey::Result<()> {
    let domain = Device::open()?.domain()?;
    let mut buffer = vec![0u8; 64];
    domain.scope(|scope| {
        let region = scope.publish(&buffer)?;
        buffer[0] = 1;
        region.key(..).map(|_| ())
    })
}
