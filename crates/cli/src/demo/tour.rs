//! The steps that must work, with the data checked on both sides.

use super::ask::{Ask, COUNTER, MEMORY, Owner, checksum, pattern};
use super::report::Report;
use anyhow::{Context, ensure};
use rkey::{Access, Connection, Device, Error, Region, RemoteKey};

/// Additions of each side to the shared counter.
const ADDITIONS: u64 = 1000;
/// The size of the message from memory to memory, in bytes.
const MESSAGE: u64 = 64 << 10;

/// The visitor's objects.
struct Visit<'a> {
    owner: &'a Owner,
    connection: Connection,
    local: Region<Vec<u8>>,
    key: RemoteKey,
}

/// Walks through registration, data transfer, atomics, messages and windows.
pub(super) fn walk(device: &Device, owner: &Owner, report: &mut Report) {
    let mut visit = None;
    report.row(
        "both register memory, and the owner sends a key",
        "",
        || {
            let local = device
                .domain()?
                .register(vec![0u8; MEMORY as usize], Access::empty())?;
            let connection = device.connect(owner.address)?;
            let key = owner.key(&Ask::Key)?;
            ensure!(
                key.len() == MEMORY,
                "the owner's key covers {} B instead of {MEMORY} B",
                key.len()
            );
            visit = Some(Visit {
                owner,
                connection,
                local,
                key,
            });
            Ok(key.to_string())
        },
    );
    // Without a key no other step is possible.
    let Some(visit) = visit else { return };
    report.row("write 64 B into the owner's memory", "", || {
        visit.write(64, 1)
    });
    report.row("write 1 MiB", "", || visit.write(COUNTER, 2));
    report.row("read 1 MiB that the owner filled", "", || visit.read());
    report.row(
        "write 1000 small buffers without registering them",
        "",
        || visit.write_small(),
    );
    report.row("fetch-and-add, both sides at once", "", || visit.count());
    report.row("compare-and-swap, hit and miss", "", || visit.swap());
    report.row("send 64 KiB from memory to memory", "", || visit.message());
    report.row("lend borrowed memory for a scope", "", || {
        visit.borrow(device)
    });
    report.row(
        "lease the owner's memory and access it directly",
        "",
        || visit.map(),
    );
    let mut window = None;
    report.row(
        "the owner binds a window to 4 KiB, and we use it",
        "",
        || {
            let key = owner.key(&Ask::Bind {
                offset: 8192,
                len: 4096,
            })?;
            window = Some(key);
            visit.use_window(&key)
        },
    );
    if let Some(key) = window {
        report.row("one byte past the window is refused", "", || {
            beside(device, owner, &key)
        });
        report.row(
            "the owner unbinds the window; its key is then refused",
            "",
            || {
                owner.done(&Ask::Unbind)?;
                unbound(device, owner, &key)
            },
        );
    }
    report.row(
        "the owner deregisters, and gets its buffer back intact",
        "",
        || visit.give_back(),
    );
}

/// The last step.
pub(super) fn farewell(owner: &Owner, report: &mut Report) {
    report.row("goodbye", "", || {
        owner.done(&Ask::Goodbye).map(|()| "the owner exits".into())
    });
}

impl Visit<'_> {
    /// The checksum of a part of the owner's memory.
    fn sum(&self, offset: u64, len: u64) -> anyhow::Result<u64> {
        self.owner.number(&Ask::Sum { offset, len })
    }

    fn write(&self, len: u64, seed: u64) -> anyhow::Result<String> {
        let bytes = pattern(seed, len as usize);
        self.local.write(0, &bytes)?;
        self.connection
            .write(&self.local, ..len, &self.key, 0)?
            .wait()?;
        let (ours, theirs) = (checksum(&bytes), self.sum(0, len)?);
        ensure!(
            ours == theirs,
            "the owner sees checksum {theirs:016x}, but we sent {ours:016x}"
        );
        Ok(format!("{len} B, checksum {ours:016x} on both sides"))
    }

    fn read(&self) -> anyhow::Result<String> {
        self.owner.done(&Ask::Fill(3))?;
        self.connection
            .read(&self.local, ..COUNTER, &self.key, 0)?
            .wait()?;
        let ours = checksum(&self.local.read_vec(..COUNTER)?);
        let made = checksum(&pattern(3, COUNTER as usize));
        ensure!(
            ours == made,
            "we see checksum {ours:016x}, but the owner wrote {made:016x}"
        );
        Ok(format!("{COUNTER} B, checksum {ours:016x} on both sides"))
    }

    fn write_small(&self) -> anyhow::Result<String> {
        let bytes = pattern(4, 1000 * 24);
        let mut last = None;
        for (part, number) in bytes.chunks_exact(24).zip(0u64..) {
            last = Some(
                self.connection
                    .write_bytes(part, &self.key, 4096 + number * 24)?,
            );
        }
        // Writes complete in order, so waiting for the last one is enough.
        last.context("nothing was written")?.wait()?;
        let (ours, theirs) = (checksum(&bytes), self.sum(4096, 24_000)?);
        ensure!(
            ours == theirs,
            "the owner sees checksum {theirs:016x}, but we sent {ours:016x}"
        );
        Ok("1000 x 24 B, in order, checksums agree".into())
    }

    fn count(&self) -> anyhow::Result<String> {
        let before = self.owner.number(&Ask::Counter)?;
        self.owner.connection.send(&Ask::Add(ADDITIONS))?;
        let mut highest = 0;
        for _ in 0..ADDITIONS {
            highest = self
                .connection
                .fetch_and_add(&self.key, COUNTER, 1)?
                .wait()?;
        }
        self.owner.answer()?;
        let after = self.owner.number(&Ask::Counter)?;
        ensure!(
            after == before + 2 * ADDITIONS,
            "the counter went from {before} to {after}, but {} additions of 1 were made",
            2 * ADDITIONS
        );
        ensure!(
            highest < after,
            "a fetch-and-add returned {highest}, which is not less than the counter's final value {after}"
        );
        Ok(format!(
            "{ADDITIONS} by us and {ADDITIONS} by the owner: {before} became {after}"
        ))
    }

    fn swap(&self) -> anyhow::Result<String> {
        let swap = |compare, new| {
            self.connection
                .compare_and_swap(&self.key, COUNTER, compare, new)
        };
        let now = self.owner.number(&Ask::Counter)?;
        let first = swap(now, 7)?.wait()?;
        ensure!(
            first == now,
            "the first compare-and-swap found {first} instead of {now}"
        );
        let second = swap(now, 9)?.wait()?;
        ensure!(
            second == 7,
            "the second compare-and-swap found {second} instead of 7"
        );
        let word = self.owner.number(&Ask::Counter)?;
        ensure!(
            word == 7,
            "the second compare-and-swap, whose comparison failed, changed 7 to {word}"
        );
        Ok(format!(
            "{now} became 7; the second, expecting {now}, changed nothing"
        ))
    }

    fn message(&self) -> anyhow::Result<String> {
        let bytes = pattern(5, MESSAGE as usize);
        self.local.write(0, &bytes)?;
        self.owner.done(&Ask::Receive(MESSAGE))?;
        self.connection.send_from(&self.local, ..MESSAGE)?.wait()?;
        let super::ask::Answer::Number(theirs) = self.owner.answer()? else {
            anyhow::bail!("the owner did not send the checksum");
        };
        let ours = checksum(&bytes);
        ensure!(
            ours == theirs,
            "the owner received checksum {theirs:016x}, but we sent {ours:016x}"
        );
        Ok(format!("{MESSAGE} B, checksum {ours:016x} on both sides"))
    }

    fn borrow(&self, device: &Device) -> anyhow::Result<String> {
        let mut bytes = vec![0u8; 4096];
        self.owner.done(&Ask::Fill(6))?;
        device.domain()?.scope(|scope| {
            let region = scope.register(&mut bytes, Access::empty())?;
            self.connection.read(&region, .., &self.key, 0)?.wait()
        })?;
        ensure!(
            bytes == pattern(6, 4096),
            "the 4096 B that we read differ from those that the owner wrote"
        );
        Ok("4096 B read into a plain Vec, which is no longer borrowed".into())
    }

    fn map(&self) -> anyhow::Result<String> {
        let key = self.owner.key(&Ask::AllocateShared(MESSAGE))?;
        let mut direct = self.connection.map(&key)?;
        let bytes = pattern(9, MESSAGE as usize);
        direct.write(0, &bytes)?;
        let (ours, theirs) = (
            checksum(&bytes),
            self.owner.number(&Ask::SharedSum(MESSAGE))?,
        );
        ensure!(
            ours == theirs,
            "the owner sees checksum {theirs:016x}, but we wrote {ours:016x}"
        );
        self.owner.done(&Ask::DeregisterShared)?;
        let late = direct.write(0, b"late");
        ensure!(
            matches!(late, Err(Error::Revoked)),
            "a write after the lease was revoked returned {late:?}"
        );
        Ok(format!(
            "{MESSAGE} B, checksum {ours:016x} on both sides; then revoked"
        ))
    }

    fn use_window(&self, key: &RemoteKey) -> anyhow::Result<String> {
        let bytes = pattern(7, 4096);
        self.local.write(0, &bytes)?;
        self.connection.write(&self.local, ..4096, key, 0)?.wait()?;
        let (ours, theirs) = (checksum(&bytes), self.sum(8192, 4096)?);
        ensure!(
            ours == theirs,
            "the owner sees checksum {theirs:016x}, but we sent {ours:016x}"
        );
        Ok(key.to_string())
    }

    fn give_back(&self) -> anyhow::Result<String> {
        let bytes = pattern(8, COUNTER as usize);
        self.local.write(0, &bytes)?;
        self.connection
            .write(&self.local, ..COUNTER, &self.key, 0)?
            .wait()?;
        let theirs = self.owner.number(&Ask::Deregister)?;
        ensure!(
            theirs == checksum(&bytes),
            "the buffer that the owner got back has the checksum {theirs:016x}, but we wrote {:016x}",
            checksum(&bytes)
        );
        let late = self
            .connection
            .write(&self.local, ..64, &self.key, 0)?
            .wait();
        ensure!(
            matches!(late, Err(Error::Denied(_))),
            "a write after the region was deregistered returned {late:?}"
        );
        Ok(format!(
            "checksum {theirs:016x}; a write after that is refused"
        ))
    }
}

/// Writes one byte past the end with a window's key, over a separate connection.
fn beside(device: &Device, owner: &Owner, key: &RemoteKey) -> anyhow::Result<String> {
    let longer = RemoteKey::from_parts(key.address(), key.len() + 1, u32::try_from(key.key())?)?;
    let connection = device.connect(owner.address)?;
    refusal(connection.write_bytes(b"x", &longer, key.len())?.wait())
}

fn unbound(device: &Device, owner: &Owner, key: &RemoteKey) -> anyhow::Result<String> {
    let connection = device.connect(owner.address)?;
    refusal(connection.write_bytes(b"x", key, 0)?.wait())
}

/// The text of the denial; any other outcome is an error.
fn refusal(outcome: rkey::Result<()>) -> anyhow::Result<String> {
    match outcome {
        Err(Error::Denied(denial)) => Ok(denial.to_string()),
        Err(other) => anyhow::bail!("the access failed without a denial: {other}"),
        Ok(()) => anyhow::bail!("the access was allowed"),
    }
}
