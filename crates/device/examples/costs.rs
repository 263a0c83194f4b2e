//! The cost of a device's calls, without a peer: `cargo run --release --example costs`.

use std::hint::black_box;
use std::time::Instant;

use rkey_base::range::VaRange;
use rkey_core::{Access, RegionSpec};
use rkey_device::{Config, Device, QpOptions};
use rkey_engine::Completion;

fn measure(what: &str, count: u32, mut each: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..7 {
        let start = Instant::now();
        for _ in 0..count {
            each();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(count));
    }
    println!("{what:<40} {best:7.1} ns");
}

#[allow(unsafe_code)]
// UNSAFETY: registering memory is inherently unsafe; nothing uses this memory.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (near, far) = (
        Device::open(Config::default())?,
        Device::open(Config::default())?,
    );
    let domain = near.create_domain()?;
    let cq = near.create_cq(256, None)?;
    let mut batch = [Completion::default(); 16];
    measure("a poll without success, no link", 1_000_000, || {
        black_box(cq.poll(&mut batch).unwrap_or(0));
    });
    let far_domain = far.create_domain()?;
    let far_cq = far.create_cq(256, None)?;
    let (a, b) = (
        near.create_qp(&QpOptions::new(domain, &cq))?,
        far.create_qp(&QpOptions::new(far_domain, &far_cq))?,
    );
    a.connect(far.node(), b.address())?;
    b.connect(near.node(), a.address())?;
    std::thread::sleep(std::time::Duration::from_millis(50));
    let links = near.inspect()?.links.len();
    measure(
        &format!("a poll without success, {} links", links - 1),
        1_000_000,
        || {
            black_box(cq.poll(&mut batch).unwrap_or(0));
        },
    );
    let memory = vec![0u8; 4096];
    let range = VaRange::new(memory.as_ptr() as u64, 4096).ok_or("a range")?;
    let ranges = [range];
    let spec = RegionSpec::new(domain, &ranges, Access::LOCAL_WRITE | Access::REMOTE);
    measure("register and deregister", 200_000, || {
        // SAFETY: nothing uses the memory in the meantime.
        let region = unsafe { near.register(&spec) };
        if let Ok(region) = region {
            let _ = black_box(near.deregister(region));
        }
    });
    measure("post to a queue pair that is not ready", 200_000, || {
        let request = rkey_engine::RecvRequest { id: 0, sges: &[] };
        let _ = black_box(a.post_recv(&request));
    });
    Ok(())
}
