//! The owner of the memory: a process that registers, hands out keys, and otherwise does nothing
//! while the visitor works on its memory.

use super::ask::{Answer, Ask, Bait, COUNTER, Hello, MEMORY, checksum, pattern};
use anyhow::Context;
use rkey::{
    Access, Connection, Device, Domain, MemoryRegion, Region, RegionOptions, RemoteKey,
    SharedMemory, Window,
};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// All that a peer can be allowed.
const ALL: Access = Access::REMOTE;
/// Bytes of the regions for the mistakes.
const BAIT: usize = 4096;

/// Plays the owner until the visitor says goodbye.
pub(super) fn run(visitor: SocketAddr) -> anyhow::Result<()> {
    let device = Device::open()?;
    let first = device.connect(visitor)?;
    let listener = device.listen("127.0.0.1:0")?;
    first.send(&Hello {
        address: listener.address(),
    })?;

    // Every further connection is taken and kept, the newest last.
    let others = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&others);
    std::thread::spawn(move || {
        while let Ok(connection) = listener.accept() {
            taken
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Arc::new(connection));
        }
    });

    let domain = device.domain()?;
    // Words, so that the counter in it is aligned.
    let memory = domain.register(vec![0u64; (MEMORY / 8) as usize], ALL)?;
    let window = domain.window()?;
    let mut owner = OwnerState {
        device,
        domain,
        memory: Some(memory),
        window,
        lent: None,
        others,
        kept: Vec::new(),
    };
    loop {
        let ask: Ask = first.receive_timeout(Duration::from_secs(60))?;
        if matches!(ask, Ask::Goodbye) {
            first.send(&Answer::Done)?;
            return Ok(());
        }
        let answer = owner
            .serve(&first, &ask)
            .unwrap_or_else(|e| Answer::Failed(e.to_string()));
        first.send(&answer)?;
    }
}

struct OwnerState {
    device: Device,
    domain: Domain,
    memory: Option<Region<Vec<u64>>>,
    window: Window,
    lent: Option<Region<SharedMemory>>,
    others: Arc<Mutex<Vec<Arc<Connection>>>>,
    /// What has to live on so that a mistake is the one it should be.
    kept: Vec<Box<dyn Any>>,
}

impl OwnerState {
    fn memory(&self) -> anyhow::Result<&MemoryRegion> {
        let region = self.memory.as_ref();
        region
            .map(|region| &**region)
            .ok_or_else(|| anyhow::anyhow!("it is deregistered"))
    }

    fn serve(&mut self, first: &Connection, ask: &Ask) -> anyhow::Result<Answer> {
        Ok(match ask {
            Ask::Key => Answer::Key(self.memory()?.key(..)?),
            Ask::Fill(seed) => {
                self.memory()?.write(0, &pattern(*seed, COUNTER as usize))?;
                Answer::Done
            }
            Ask::Sum { offset, len } => {
                let bytes = self
                    .memory()?
                    .read_vec(*offset..offset.saturating_add(*len))?;
                Answer::Number(checksum(&bytes))
            }
            Ask::Add(times) => {
                for _ in 0..*times {
                    self.memory()?.fetch_add(COUNTER, 1)?;
                }
                Answer::Done
            }
            Ask::Counter => Answer::Number(self.memory()?.load_u64(COUNTER)?),
            Ask::Receive(len) => self.receive(first, *len)?,
            Ask::Bind { offset, len } => {
                let range = *offset..offset.saturating_add(*len);
                Answer::Key(self.window.bind(self.memory()?, range, ALL)?)
            }
            Ask::Unbind => {
                self.window.unbind()?;
                Answer::Done
            }
            Ask::Lend(len) => {
                let memory = self.device.allocate(usize::try_from(*len)?)?;
                let lent = self.domain.register(memory, ALL)?;
                let key = lent.key(..)?;
                self.lent = Some(lent);
                Answer::Key(key)
            }
            Ask::LentSum(len) => {
                let lent = self.lent.as_ref().context("nothing is lent")?;
                Answer::Number(checksum(&lent.read_vec(..*len)?))
            }
            Ask::TakeBack => {
                self.lent.take().context("nothing is lent")?.deregister()?;
                Answer::Done
            }
            Ask::Bait(bait) => Answer::Key(self.bait(*bait)?),
            Ask::Refused => Answer::Number(self.device.inspect()?.denied),
            Ask::Deregister => {
                let region = self
                    .memory
                    .take()
                    .ok_or_else(|| anyhow::anyhow!("it is gone"))?;
                let buffer: Vec<u64> = region.deregister()?;
                let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_le_bytes()).collect();
                Answer::Number(checksum(&bytes[..COUNTER as usize]))
            }
            Ask::Goodbye => Answer::Done,
        })
    }

    /// Receives one message into memory of its own and tells its check sum.
    fn receive(&self, first: &Connection, len: u64) -> anyhow::Result<Answer> {
        let newest = self
            .others
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .last()
            .cloned();
        let connection = newest.context("there is no data connection")?;
        let target = self
            .domain
            .register(vec![0u8; len as usize], Access::empty())?;
        let message = connection.receive_into(&target, ..)?;
        first.send(&Answer::Done)?;
        let received = message.wait()? as u64;
        Ok(Answer::Number(checksum(&target.read_vec(..received)?)))
    }

    fn bait(&mut self, bait: Bait) -> anyhow::Result<RemoteKey> {
        let fresh = || vec![0u8; BAIT];
        let remember = |kept: &mut Vec<Box<dyn Any>>, thing: Box<dyn Any>| kept.push(thing);
        let key = match bait {
            Bait::Plain => {
                let region = self.domain.register(fresh(), ALL)?;
                let key = region.key(..)?;
                remember(&mut self.kept, Box::new(region));
                key
            }
            Bait::ReadOnly => {
                let region = self.domain.register(fresh(), Access::REMOTE_READ)?;
                let key = region.key(..)?;
                remember(&mut self.kept, Box::new(region));
                key
            }
            Bait::Freed | Bait::Replaced => {
                let region = self.domain.register(fresh(), ALL)?;
                let key = region.key(..)?;
                drop(region.deregister()?);
                if bait == Bait::Replaced {
                    remember(
                        &mut self.kept,
                        Box::new(self.domain.register(fresh(), ALL)?),
                    );
                }
                key
            }
            Bait::OtherDomain => {
                let region = self.device.new_domain()?.register(fresh(), ALL)?;
                let key = region.key(..)?;
                remember(&mut self.kept, Box::new(region));
                key
            }
            Bait::OtherDevice => {
                let region = Device::open()?.domain()?.register(fresh(), ALL)?;
                let key = region.key(..)?;
                remember(&mut self.kept, Box::new(region));
                key
            }
            Bait::LocalKey => {
                let region = self.domain.register(fresh(), ALL)?;
                let local = region.local_key().0;
                let key = RemoteKey::from_parts(region.base(), region.len(), local)?;
                remember(&mut self.kept, Box::new(region));
                key
            }
            Bait::Rebound => {
                let region = self.domain.register(fresh(), ALL)?;
                let window = self.domain.window()?;
                let key = window.bind(&region, ..1024, ALL)?;
                window.bind(&region, 1024..2048, ALL)?;
                remember(&mut self.kept, Box::new((window, region)));
                key
            }
            Bait::ZeroBased => {
                let buffer = fresh();
                let address = buffer.as_ptr().addr() as u64;
                let region = self
                    .domain
                    .register(buffer, RegionOptions::new(ALL).zero_based())?;
                let key = region.key(..)?;
                remember(&mut self.kept, Box::new(region));
                RemoteKey::from_parts(address, BAIT as u64, u32::try_from(key.key())?)?
            }
        };
        Ok(key)
    }
}
