//! One process distributes tasks to several workers with tagged messages; a free worker gets the next one.
//!
//! There is no connection to accept or to manage: a worker needs the address of the farmer, and the farmer gets the
//! worker's address from its first message.
//!
//! ```text
//! cargo run -p rkey --example task_farm                three workers count primes below 200000
//! cargo run -p rkey --example task_farm 5 1000000
//! ```

use rkey::Device;
use rkey::endpoint::{Address, Endpoint, Tag};
use std::process::Command;

/// Tags of messages to the farmer: the low byte is the kind, the rest is the number of the task.
const ASK: u64 = 1;
const RESULT: u64 = 2;
/// The bits of the task's number, which receives ignore.
const NUMBER: u64 = !0xff;
/// Tags of messages to a worker.
const TASK: u64 = 3;
const STOP: u64 = 4;
/// How many numbers one task covers.
const STEP: u64 = 10_000;

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["worker", farmer] => work(farmer.parse()?),
        [] => farm(3, 200_000),
        [workers, limit] => farm(workers.parse()?, limit.parse()?),
        _ => anyhow::bail!("usage: task_farm [WORKERS LIMIT]"),
    }
}

/// Distributes the tasks and collects the results.
fn farm(workers: u64, limit: u64) -> anyhow::Result<()> {
    let endpoint = Device::open()?.endpoint()?;
    let mut children = Vec::new();
    for _ in 0..workers {
        let address = endpoint.address().to_string();
        let exe = std::env::current_exe()?;
        children.push(Command::new(exe).args(["worker", &address]).spawn()?);
    }

    // Results arrive in any order; their tags identify their tasks.
    let tasks = limit.div_ceil(STEP);
    let mut results = Vec::new();
    for _ in 0..tasks {
        let buffer = vec![0; STEP as usize * 8];
        results.push(endpoint.receive_tagged(Tag::masked(RESULT, NUMBER), None, buffer)?);
    }

    for number in 0..tasks {
        let free = endpoint.receive_tagged(ASK, None, Vec::new())?.wait()?;
        let task = number.to_le_bytes();
        endpoint.send_tagged(free.from, TASK, task)?.wait()?;
    }

    let mut primes = Vec::new();
    for result in results {
        let result = result.wait()?;
        let found = result.bytes.chunks_exact(8);
        println!(
            "task {:>3} by {}: {} primes",
            result.tag >> 8,
            result.from,
            found.len()
        );
        for prime in found {
            primes.push(u64::from_le_bytes(prime.try_into()?));
        }
    }
    for _ in 0..workers {
        let idle = endpoint.receive_tagged(ASK, None, Vec::new())?.wait()?;
        endpoint.send_tagged(idle.from, STOP, Vec::new())?.wait()?;
    }
    for mut child in children {
        anyhow::ensure!(child.wait()?.success(), "a worker failed");
    }
    primes.sort_unstable();
    println!("{} primes below {limit}", primes.len());
    anyhow::ensure!(
        primes.first() == Some(&2) && primes.windows(2).all(|pair| pair[0] < pair[1]),
        "a prime is missing, or was found twice"
    );
    Ok(())
}

/// Requests tasks until there are no more.
fn work(farmer: Address) -> anyhow::Result<()> {
    let endpoint: Endpoint = Device::open()?.endpoint()?;
    loop {
        let order = endpoint.receive_tagged(Tag::ANY, farmer, vec![0; 8])?;
        endpoint.send_tagged(farmer, ASK, Vec::new())?.wait()?;
        let order = order.wait()?;
        if order.tag == STOP {
            return Ok(());
        }
        let number = u64::from_le_bytes(order.bytes.as_slice().try_into()?);
        let range = number * STEP..(number + 1) * STEP;
        let primes: Vec<u8> = range
            .filter(|&it| is_prime(it))
            .flat_map(u64::to_le_bytes)
            .collect();
        // The farmer reads a result of more than 8 KiB from this process's memory when it has a receive for it.
        endpoint
            .send_tagged(farmer, number << 8 | RESULT, primes)?
            .wait()?;
    }
}

fn is_prime(number: u64) -> bool {
    let mut divisors = (2..).take_while(|it| it * it <= number);
    number >= 2 && divisors.all(|it| !number.is_multiple_of(it))
}
