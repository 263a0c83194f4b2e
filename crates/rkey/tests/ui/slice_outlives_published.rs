//! The slice of published memory ends with the publication.

use rkey::Device;

fn main() -> rkey::Result<()> {
    let published = Device::open()?.domain()?.publish(vec![0u8; 64])?;
    let bytes = published.as_slice();
    let mut buffer = published.withdraw()?;
    buffer[0] = 1;
    println!("{}", bytes[0]);
    Ok(())
}
