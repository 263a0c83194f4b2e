//! Memory that another process may have mapped cannot be published as unchanging bytes.

use rkey::Device;

fn main() -> rkey::Result<()> {
    let device = Device::open()?;
    let published = device.domain()?.publish(device.allocate(4096)?)?;
    println!("{}", published.as_slice()[0]);
    Ok(())
}
