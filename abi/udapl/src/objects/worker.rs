//! The worker of an IA: a thread for work that continues without calls from the program.
//!
//! It waits for connection requests, for the answers of peers, and for reports of completion queues and of the device, and
//! it calls the agents of CNOs. It holds no lock while it calls the program.

use crate::handles::fail::{Fail, Result};
use crate::objects::ep::Ep;
use crate::objects::ia::Ia;
use crate::objects::job::Job;
use crate::objects::service::Service;
use crate::sys::consts::*;
use crate::values::ep_state::State;
use crate::values::hello::{Hello, Purpose};
use parking_lot::{Mutex, RwLock};
use rkey_device::{AsyncEvent, DeviceError, Incoming, threads, time};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long closing an IA waits for its last messages to be sent.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// The pause between two checks of jobs without a descriptor.
const TICK: Duration = Duration::from_millis(1);
/// The pause after a listener failed.
const PAUSE: Duration = Duration::from_millis(10);
/// The maximum number of connection requests of one listener that one round takes.
const REQUESTS: usize = 64;
/// How often to take that many messages of peers that have ended.
const LAST_ROUNDS: usize = 64;

/// The handle of the thread.
pub struct Worker {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    wake: Option<OwnedFd>,
    jobs: Mutex<Vec<Job>>,
    /// EPs whose connections may be broken.
    suspects: Mutex<Vec<Weak<Ep>>>,
    /// Read-locked while an answer to a connection request is sent and its job is added.
    answering: RwLock<()>,
    services: Mutex<Vec<Weak<Service>>>,
    stop: AtomicBool,
}

impl Shared {
    fn ring(&self) {
        if let Some(wake) = &self.wake {
            // The write fails only if the counter is full, and then the descriptor is already readable.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    fn services(&self) -> Vec<Arc<Service>> {
        let mut services = self.services.lock();
        services.retain(|service| service.strong_count() > 0);
        services.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn start(ia: &Arc<Ia>) -> Result<Self> {
        let exhausted = |_| Fail::resource(RESOURCE_DEVICE);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|_| Fail::resource(RESOURCE_DEVICE))?;
        let shared = Arc::new(Shared {
            wake: Some(wake),
            jobs: Mutex::default(),
            suspects: Mutex::default(),
            answering: RwLock::default(),
            services: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let round = Round {
            ia: Arc::clone(ia),
            shared: Arc::clone(&shared),
            jobs: Vec::new(),
            pause: false,
        };
        let thread = threads::spawn("rkey-dat", move || round.run()).map_err(exhausted)?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// A worker without a thread, for an IA that failed to open.
    #[must_use]
    pub fn absent() -> Self {
        Self {
            shared: Arc::new(Shared {
                wake: None,
                jobs: Mutex::default(),
                suspects: Mutex::default(),
                answering: RwLock::default(),
                services: Mutex::default(),
                stop: AtomicBool::new(true),
            }),
            thread: Mutex::new(None),
        }
    }

    /// Adds a job for the worker.
    pub fn add(&self, job: Job) {
        if !self.shared.stop.load(Ordering::Acquire) {
            self.shared.jobs.lock().push(job);
            self.shared.ring();
        }
    }

    /// Answers a connection request, and adds the worker's job that waits for the confirmation. The worker handles no
    /// later message of the peer before it has the job.
    ///
    /// # Errors
    /// The errors of `answer`.
    pub fn answer(
        &self,
        answer: impl FnOnce() -> std::result::Result<Job, DeviceError>,
    ) -> std::result::Result<(), DeviceError> {
        let _answering = self.shared.answering.read();
        self.add(answer()?);
        Ok(())
    }

    /// Makes the worker check whether the connection of an EP is broken.
    pub fn suspect(&self, ep: &Arc<Ep>) {
        self.shared.suspects.lock().push(Arc::downgrade(ep));
        self.shared.ring();
    }

    /// Makes the worker check its jobs again.
    pub fn ring(&self) {
        self.shared.ring();
    }

    /// Makes the worker listen for a PSP or RSP.
    pub fn serve(&self, service: &Arc<Service>) {
        self.shared.services.lock().push(Arc::downgrade(service));
        self.shared.ring();
    }

    /// Stops the worker once its last messages are sent, or after [`LAST_WORDS`].
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring();
        let thread = self.thread.lock().take();
        // If an agent closes the IA, this is the worker's own thread.
        if let Some(thread) = thread.filter(|it| it.thread().id() != std::thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!("bug: the worker thread of an IA panicked");
        }
    }
}

/// The state of the thread.
struct Round {
    ia: Arc<Ia>,
    shared: Arc<Shared>,
    jobs: Vec<Job>,
    /// Whether to pause after this round.
    pause: bool,
}

impl Round {
    fn run(mut self) {
        if let Err(error) = self.ia.sink_cq.watch(&self.ia.channel) {
            tracing::debug!(
                %error,
                "IA {:#x} cannot watch its queue for completions without an EVD",
                self.ia.handle
            );
        }
        loop {
            let services = self.shared.services();
            let ready = self.wait(&services);
            let stop = self.shared.stop.load(Ordering::Acquire);
            if stop {
                return self.finish();
            }
            let farewells = self.farewells();
            self.step(&ready);
            self.serve(&services);
            self.peers_left(farewells);
            // They say which peers have gone; so these are not suspected.
            if let Err(error) = self.device_events() {
                return self.fail(&error);
            }
            self.check_suspects();
            while let Ok(Some(cq)) = self.ia.channel.try_next_event() {
                self.confirm();
                self.ia.cq_event(cq);
            }
            if std::mem::take(&mut self.pause) {
                time::sleep(PAUSE);
            }
        }
    }

    /// The device has failed: notifies the program. Until the IA is closed, the worker only calls agents, also for this event.
    /// The usual rounds would spin: the descriptors of the failed device stay readable.
    fn fail(mut self, error: &DeviceError) {
        tracing::error!(
            %error,
            "the device of IA {:#x} has failed; the IA's connections make no more progress",
            self.ia.handle
        );
        let number = ASYNC_ERROR_IA_CATASTROPHIC;
        self.ia.tell(number, self.ia.handle, IA_CATASTROPHIC_ERROR);
        self.jobs.clear();
        while let Some(wake) = &self.shared.wake {
            self.shared.suspects.lock().clear();
            let new = std::mem::take(&mut *self.shared.jobs.lock());
            for mut job in new {
                if matches!(job, Job::Notify { .. }) {
                    job.step(time::now());
                }
            }
            if self.shared.stop.load(Ordering::Acquire) {
                return;
            }
            let _ = poll(&mut [PollFd::new(wake, PollFlags::IN)], None);
            let _ = rustix::io::read(wake, &mut [0u8; 8]);
        }
    }

    /// Takes what the device has reported.
    fn device_events(&mut self) -> std::result::Result<(), DeviceError> {
        let mut events = Vec::new();
        while let Some(event) = self.ia.device.next_event(Some(Duration::ZERO))? {
            events.push(event);
        }
        let is_end = |event: &AsyncEvent| matches!(event, AsyncEvent::PeerGone { why: None, .. });
        if events.iter().any(is_end) {
            self.last_farewells();
        }
        for event in events {
            self.confirm();
            self.ia.device_event(event);
        }
        Ok(())
    }

    /// Takes the messages of peers of this host that have disconnected and then exited: their messages have arrived before their end
    /// is known.
    fn last_farewells(&mut self) {
        self.confirm();
        for _ in 0..LAST_ROUNDS {
            let farewells = self.farewells();
            if farewells.is_empty() {
                return;
            }
            self.peers_left(farewells);
        }
    }

    /// Pauses after this round, because a listener failed and may stay readable.
    fn pause_after(&mut self, error: &DeviceError) {
        tracing::debug!(
            %error,
            "IA {:#x} cannot accept connection requests; retrying",
            self.ia.handle
        );
        self.pause = true;
    }

    /// Waits until there is work: a job that is ready or new, a request, or a report. Returns which of the older jobs are
    /// ready.
    fn wait(&mut self, services: &[Arc<Service>]) -> Vec<bool> {
        let Some(wake) = &self.shared.wake else {
            return Vec::new();
        };
        let own = [
            wake.as_fd(),
            self.ia.device.event_fd(),
            self.ia.channel.fd(),
            self.ia.control.socket(),
        ];
        let awaited: Vec<_> = services.iter().filter_map(|it| it.awaited()).collect();
        let listeners = awaited.iter().map(|listener| listener.socket());
        let jobs = self.jobs.iter().filter_map(Job::socket);
        let mut set: Vec<PollFd<'_>> = own
            .into_iter()
            .chain(listeners)
            .chain(jobs)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let first_job = own.len() + awaited.len();
        let timeout = self.patience(services).map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        if self.shared.jobs.lock().is_empty() {
            let _ = poll(&mut set, timeout.as_ref());
        }
        let mut answers = set
            .iter()
            .skip(first_job)
            .map(|fd| !fd.revents().is_empty());
        let has_socket = self.jobs.iter().map(|job| job.socket().is_some());
        let ready = has_socket
            .map(|has| !has || answers.next().unwrap_or(true))
            .collect();
        let _ = rustix::io::read(wake, &mut [0u8; 8]);
        ready
    }

    /// The time until the next deadline or tick.
    fn patience(&self, services: &[Arc<Service>]) -> Option<Duration> {
        let half_open = services.iter().any(|service| service.is_impatient())
            || self.ia.control.has_half_open();
        if half_open || self.jobs.iter().any(|job| job.socket().is_none()) {
            return Some(TICK);
        }
        let now = time::now();
        let next = self.jobs.iter().filter_map(Job::deadline).min()?;
        Some(next.saturating_duration_since(now).max(TICK))
    }

    /// Advances the jobs that are ready, new or past their deadline.
    fn step(&mut self, ready: &[bool]) {
        let now = time::now();
        let mut index = 0;
        let mut old = std::mem::take(&mut self.jobs);
        old.retain_mut(|job| {
            let is_ready = ready.get(index).copied().unwrap_or(true);
            index += 1;
            let over = job.deadline().is_some_and(|end| now >= end);
            !((is_ready || over || job.may_be_stale()) && job.step(now))
        });
        self.await_answers();
        let mut new = std::mem::take(&mut *self.shared.jobs.lock());
        // A new job may concern an EP whose confirmation is among the older jobs, so those come first.
        new.retain_mut(|job| !job.step(now));
        old.append(&mut new);
        self.jobs = old;
    }

    /// Ends the connections that are broken.
    fn check_suspects(&mut self) {
        let suspects = std::mem::take(&mut *self.shared.suspects.lock());
        let mut broken: Vec<Arc<Ep>> = suspects.iter().filter_map(Weak::upgrade).collect();
        broken.retain(|ep| ep.is_broken());
        if broken.is_empty() {
            return;
        }
        self.last_farewells();
        for ep in broken {
            ep.check_service();
        }
    }

    /// Takes the confirmations of accepted connections. A peer may have sent one before the request or disconnect that
    /// was taken last, or before it ended, so its event must come first: `dtestcm` counts events and takes the last ones for
    /// disconnections.
    fn confirm(&mut self) {
        self.await_answers();
        self.jobs.append(&mut *self.shared.jobs.lock());
        if !self
            .jobs
            .iter()
            .any(|job| matches!(job, Job::Accept { .. }))
        {
            return;
        }
        let now = time::now();
        self.jobs
            .retain_mut(|job| !(matches!(job, Job::Accept { .. }) && job.step(now)));
    }

    /// Waits until each answer that was sent has its job.
    fn await_answers(&self) {
        drop(self.shared.answering.write());
    }

    /// Takes the messages of peers whose EPs have disconnected.
    fn farewells(&mut self) -> Vec<(Incoming, Hello)> {
        let mut all = Vec::new();
        for _ in 0..REQUESTS {
            match self.ia.control.try_accept() {
                Ok(Some(incoming)) => {
                    if let Some(hello) = Hello::decode(&incoming.peer().private_data) {
                        all.push((incoming, hello));
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    self.pause_after(&error);
                    break;
                }
            }
        }
        all
    }

    /// Ends the connections that these messages are about.
    fn peers_left(&self, farewells: Vec<(Incoming, Hello)>) {
        for (incoming, hello) in farewells {
            if matches!(hello.purpose, Purpose::Disconnect | Purpose::Break)
                && let Some(ep) = self.ia.ep(hello.qpn)
                && ep.state() != State::Disconnected
            {
                ep.peer_left(incoming.peer(), &hello);
            }
        }
    }

    /// Takes connection requests.
    fn serve(&mut self, services: &[Arc<Service>]) {
        for service in services {
            for _ in 0..REQUESTS {
                match service.next_request() {
                    Ok(Some(request)) => {
                        self.confirm();
                        service.deliver(request);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        self.pause_after(&error);
                        break;
                    }
                }
            }
        }
    }

    /// Sends the last messages.
    fn finish(mut self) {
        // Peers that were accepted and have not confirmed are told, too.
        self.confirm();
        self.jobs.retain(|job| matches!(job, Job::Farewell { .. }));
        let until = time::now() + LAST_WORDS;
        loop {
            let now = time::now();
            // A job with a socket has already passed its message to the kernel.
            self.jobs
                .retain_mut(|job| job.socket().is_none() && !job.step(now));
            if self.jobs.is_empty() || now >= until {
                return;
            }
            time::sleep(TICK);
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
// UNSAFETY: C functions.
mod tests {
    use super::*;
    use crate::handles::object::find;
    use crate::provider;
    use crate::sys::{EvdHandle, IaHandle, OsWaitProxyAgent, Pvoid};
    use std::ptr::null_mut;
    use std::sync::mpsc::{Sender, channel};

    /// Calls a function of the table, which must exist and succeed.
    macro_rules! ok {
        ($function:ident($($argument:expr),*)) => {{
            let table = provider::entry(c"rkey-failing", "127.0.0.1".into()).table();
            // SAFETY: live handles, and room for the results.
            let code = unsafe { table.$function.unwrap()($($argument),*) };
            assert_eq!(code, 0, stringify!($function));
        }};
    }

    unsafe extern "C" fn agent(calls: Pvoid, evd: EvdHandle) {
        // SAFETY: the test passes a sender that it keeps.
        let calls = unsafe { &*calls.cast::<Sender<usize>>() };
        calls.send(evd as usize).unwrap();
    }

    #[test]
    fn agents_are_called_for_a_failed_device_and_for_later_events() {
        let (calls, called) = channel::<usize>();
        let (mut ia, mut evd, mut cno): (IaHandle, EvdHandle, _) =
            (null_mut(), null_mut(), null_mut());
        let name = c"rkey-failing".as_ptr().cast_mut();
        ok!(ia_open_func(name, 8, &raw mut evd, &raw mut ia));
        let agent = OsWaitProxyAgent {
            instance_data: (&raw const calls).cast_mut().cast(),
            proxy_agent_func: Some(agent),
        };
        ok!(cno_create_func(ia, agent, &raw mut cno));
        ok!(evd_modify_cno_func(evd, cno));
        // SAFETY: a live handle.
        let object = Arc::clone(unsafe { find::<Ia>(ia) }.unwrap());
        // In place of its worker, one whose device fails in its first round.
        object.worker().stop();
        let shared = Arc::clone(&object.worker().shared);
        shared.stop.store(false, Ordering::Release);
        let round = Round {
            ia: Arc::clone(&object),
            shared: Arc::clone(&shared),
            jobs: Vec::new(),
            pause: false,
        };
        let thread = std::thread::spawn(|| round.fail(&DeviceError::Forked));
        let patience = Duration::from_secs(30);
        assert_eq!(called.recv_timeout(patience), Ok(evd as usize));
        object.tell(ASYNC_ERROR_PROVIDER_INTERNAL_ERROR, object.handle, 0);
        assert_eq!(called.recv_timeout(patience), Ok(evd as usize));
        object.worker().stop();
        thread.join().unwrap();
        drop(object);
        ok!(evd_modify_cno_func(evd, null_mut()));
        ok!(cno_free_func(cno));
        ok!(ia_close_func(ia, CLOSE_ABRUPT_FLAG));
    }
}
