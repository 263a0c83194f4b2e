//! Several processes increment one word of memory that belongs to one of them.
//!
//! Each worker adds to the word with atomics, one at a time. At the end the sum is exact, and each number was seen by
//! exactly one worker.
//!
//! ```text
//! cargo run -p rkey --example shared_counter               three workers, 2000 steps each
//! cargo run -p rkey --example shared_counter 5 10000
//! ```

use rkey::{Access, Device, RemoteKey};
use std::collections::HashSet;
use std::process::Command;

/// The result of a worker: the old values that its additions returned.
type Seen = Vec<u64>;

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["worker", address] => work(address),
        [] => own(3, 2000),
        [workers, steps] => own(workers.parse()?, steps.parse()?),
        _ => anyhow::bail!("usage: shared_counter [WORKERS STEPS]"),
    }
}

fn own(workers: usize, steps: u64) -> anyhow::Result<()> {
    // Raise the limit: the messages of this example contain up to 400 kB of old values.
    let device = Device::builder().max_message(1 << 20).open()?;
    // A Vec<u64>, because atomics need an address that is a multiple of 8.
    let counter = device
        .domain()?
        .register(vec![0u64; 1], Access::REMOTE_ATOMIC)?;
    let listener = device.listen("127.0.0.1:0")?;

    let mut children = Vec::new();
    for _ in 0..workers {
        let exe = std::env::current_exe()?;
        let address = listener.address().to_string();
        children.push(Command::new(exe).args(["worker", &address]).spawn()?);
    }
    let mut connections = Vec::new();
    for _ in 0..workers {
        connections.push(listener.accept()?);
    }
    for worker in &connections {
        worker.send(&(counter.key(..)?, steps))?;
    }
    let mut seen = HashSet::new();
    for worker in &connections {
        let met: Seen = worker.receive()?;
        println!("worker {} added {} times", worker.peer().pid, met.len());
        for value in met {
            anyhow::ensure!(seen.insert(value), "two workers got the value {value}");
        }
    }
    drop(connections);
    for mut child in children {
        anyhow::ensure!(child.wait()?.success(), "a worker failed");
    }
    let sum = counter.load_u64(0)?;
    println!("the counter says {sum}");
    anyhow::ensure!(
        sum == workers as u64 * steps,
        "the counter is {sum}, not workers * steps"
    );
    Ok(())
}

fn work(address: &str) -> anyhow::Result<()> {
    let device = Device::builder().max_message(1 << 20).open()?;
    let owner = device.connect(address)?;
    let (key, steps): (RemoteKey, u64) = owner.receive()?;
    let mut seen: Seen = Vec::new();
    for step in 0..steps {
        // Every tenth step uses compare-and-swap, which can implement any other atomic update.
        if step % 10 == 0 {
            let mut guess = seen.last().map_or(0, |last| last + 1);
            loop {
                let old = owner.compare_and_swap(&key, 0, guess, guess + 1)?.wait()?;
                if old == guess {
                    break;
                }
                guess = old;
            }
            seen.push(guess);
        } else {
            seen.push(owner.fetch_and_add(&key, 0, 1)?.wait()?);
        }
    }
    owner.send(&seen)?;
    Ok(())
}
