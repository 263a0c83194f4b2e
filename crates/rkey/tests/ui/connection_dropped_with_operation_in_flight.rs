//! A connection cannot be dropped while a pending operation borrows it.

use rkey::{Access, Device, RemoteKey};

fn main() -> rkey::Result<()> {
    let device = Device::open()?;
    let region = device.domain()?.register(vec![0u8; 64], Access::empty())?;
    let owner = device.connect("127.0.0.1:7471")?;
    let key: RemoteKey = owner.receive()?;
    let pending = owner.read(&region, 0..64, &key, 0)?;
    drop(owner);
    pending.wait()
}
