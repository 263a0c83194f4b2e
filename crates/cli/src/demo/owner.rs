//! The owner of the memory: a process that registers it, issues keys, and otherwise does nothing while the visitor works on the
//! memory.

use super::ask::{Answer, Ask, Bait, COUNTER, Hello, MEMORY, checksum, pattern};
use anyhow::Context;
use parking_lot::Mutex;
use rkey::{
    Access, Connection, Device, Domain, MemoryRegion, Region, RegionOptions, RemoteKey,
    SharedMemory, Window,
};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// All rights.
const ALL: Access = Access::REMOTE;
/// The size of the regions for the mistakes, in bytes.
const BAIT: usize = 4096;

/// Plays the owner until the visitor says goodbye.
pub(super) fn run(visitor: SocketAddr) -> anyhow::Result<()> {
    let device = Device::open()?;
    let first = device.connect(visitor)?;
    let listener = device.listen("127.0.0.1:0")?;
    first.send(&Hello {
        address: listener.address(),
    })?;

    // The connections accepted after the first one, newest last.
    let others = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&others);
    std::thread::spawn(move || {
        while let Ok(connection) = listener.accept() {
            taken.lock().push(Arc::new(connection));
        }
    });

    let domain = device.domain()?;
    // The memory consists of words, so that the counter is aligned.
    let memory = domain.register(vec![0u64; (MEMORY / 8) as usize], ALL)?;
    let window = domain.window()?;
    let mut owner = OwnerState {
        device,
        domain,
        memory: Some(memory),
        window,
        shared: None,
        others,
        bait_objects: Vec::new(),
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
    shared: Option<Region<SharedMemory>>,
    others: Arc<Mutex<Vec<Arc<Connection>>>>,
    /// Objects that must outlive their request, so that each mistake is the intended one.
    bait_objects: Vec<Box<dyn Any>>,
}

impl OwnerState {
    fn memory(&self) -> anyhow::Result<&MemoryRegion> {
        let region = self.memory.as_ref();
        region
            .map(|region| &**region)
            .ok_or_else(|| anyhow::anyhow!("the memory is already deregistered"))
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
            Ask::AllocateShared(len) => {
                let memory = self.device.allocate(usize::try_from(*len)?)?;
                let shared = self.domain.register(memory, ALL)?;
                let key = shared.key(..)?;
                self.shared = Some(shared);
                Answer::Key(key)
            }
            Ask::SharedSum(len) => {
                let shared = self
                    .shared
                    .as_ref()
                    .context("no shared memory is registered")?;
                Answer::Number(checksum(&shared.read_vec(..*len)?))
            }
            Ask::DeregisterShared => {
                self.shared
                    .take()
                    .context("no shared memory is registered")?
                    .deregister()?;
                Answer::Done
            }
            Ask::Bait(bait) => Answer::Key(self.bait(*bait)?),
            Ask::Refused => Answer::Number(self.device.inspect()?.denied),
            Ask::Deregister => {
                let region = self
                    .memory
                    .take()
                    .ok_or_else(|| anyhow::anyhow!("the memory is already deregistered"))?;
                let buffer: Vec<u64> = region.deregister()?;
                let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_le_bytes()).collect();
                Answer::Number(checksum(&bytes[..COUNTER as usize]))
            }
            Ask::Goodbye => Answer::Done,
        })
    }

    /// Receives one message into separate memory, and answers with its checksum.
    fn receive(&self, first: &Connection, len: u64) -> anyhow::Result<Answer> {
        let newest = self.others.lock().last().cloned();
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
        let remember = |objects: &mut Vec<Box<dyn Any>>, one: Box<dyn Any>| objects.push(one);
        let key = match bait {
            Bait::Plain => {
                let region = self.domain.register(fresh(), ALL)?;
                let key = region.key(..)?;
                remember(&mut self.bait_objects, Box::new(region));
                key
            }
            Bait::ReadOnly => {
                let region = self.domain.register(fresh(), Access::REMOTE_READ)?;
                let key = region.key(..)?;
                remember(&mut self.bait_objects, Box::new(region));
                key
            }
            Bait::Freed | Bait::Replaced => {
                let region = self.domain.register(fresh(), ALL)?;
                let key = region.key(..)?;
                drop(region.deregister()?);
                if bait == Bait::Replaced {
                    remember(
                        &mut self.bait_objects,
                        Box::new(self.domain.register(fresh(), ALL)?),
                    );
                }
                key
            }
            Bait::OtherDomain => {
                let region = self.device.new_domain()?.register(fresh(), ALL)?;
                let key = region.key(..)?;
                remember(&mut self.bait_objects, Box::new(region));
                key
            }
            Bait::OtherDevice => {
                let region = Device::open()?.domain()?.register(fresh(), ALL)?;
                let key = region.key(..)?;
                remember(&mut self.bait_objects, Box::new(region));
                key
            }
            Bait::LKey => {
                let region = self.domain.register(fresh(), ALL)?;
                let local = region.local_key().0;
                let key = RemoteKey::from_parts(region.base(), region.len(), local)?;
                remember(&mut self.bait_objects, Box::new(region));
                key
            }
            Bait::Rebound => {
                let region = self.domain.register(fresh(), ALL)?;
                let window = self.domain.window()?;
                let key = window.bind(&region, ..1024, ALL)?;
                window.bind(&region, 1024..2048, ALL)?;
                remember(&mut self.bait_objects, Box::new((window, region)));
                key
            }
            Bait::ZeroBased => {
                let buffer = fresh();
                let address = buffer.as_ptr().addr() as u64;
                let region = self
                    .domain
                    .register(buffer, RegionOptions::new(ALL).zero_based())?;
                let key = region.key(..)?;
                remember(&mut self.bait_objects, Box::new(region));
                RemoteKey::from_parts(address, BAIT as u64, u32::try_from(key.key())?)?
            }
        };
        Ok(key)
    }
}
