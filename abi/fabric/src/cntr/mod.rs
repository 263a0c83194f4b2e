//! Counters of an endpoint's own operations, and of peers' accesses to regions (FI-177, FI-180).

#![allow(unsafe_code)]
// UNSAFETY: C functions.

mod waiting;

pub(crate) use waiting::trywait;

use crate::attached::{Attached, Driven};
use crate::domain::{Domain, DomainObject, number};
use crate::errno::FiError;
use crate::lenient;
use crate::nosys::{self, nosys};
use crate::object::{Users, busy, find, object, publish, remove, status};
use crate::sys::*;
use crate::wait::{Deadline, check_object};
use crate::work::Counting;
use parking_lot::Mutex;
use rkey_device::time;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use waiting::Wait;

/// How long a waiting call sleeps between checks.
const PAUSE: Duration = Duration::from_micros(20);
/// The number of checks before the first sleep.
const SPINS: u32 = 2000;

/// The object behind the program's handle.
#[repr(C)]
pub(crate) struct CntrObject {
    fid: UnsafeCell<FidCntr>,
    pub(crate) inner: Arc<Counter>,
}
object!(CntrObject, FidCntr, 65536);

/// The kind of accesses by peers that a counter counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remote {
    Reads,
    Writes,
}

impl Remote {
    fn of(self, counted: rkey_device::Counter) -> u64 {
        match self {
            Self::Reads => counted.reads,
            Self::Writes => counted.writes,
        }
    }
}

/// A counter.
pub(crate) struct Counter {
    pub(crate) domain: Arc<Domain>,
    /// Without the device's counts. Wraps around, so that a program can set any value.
    value: AtomicU64,
    errors: AtomicU64,
    /// The number under which the device counts accesses to regions.
    regions: OnceLock<u32>,
    endpoints: Attached,
    /// Endpoints (by number) whose remote accesses count here.
    remote: Mutex<Vec<(u32, Remote)>>,
    waitable: bool,
    descriptor: Option<Wait>,
    pub(crate) users: Users,
}

impl Counter {
    /// Adds without waking waiting threads: the caller must start the work that becomes due. The change is ordered with
    /// the queueing of work: either the new work sees the new value, or the caller sees the new work.
    pub(crate) fn add(&self, more: u64) {
        self.value.fetch_add(more, Ordering::SeqCst);
    }

    /// Counts a success. Wakes a waiting thread if that makes work due.
    #[inline]
    pub(crate) fn count(&self) {
        self.add(1);
        self.domain.work.counted_in(self);
    }

    pub(crate) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::SeqCst);
        self.domain.work.counted_in(self);
    }

    fn by_device(&self) -> u64 {
        let device = &self.domain.device;
        let of_regions = self.regions.get();
        let of_regions = of_regions.map_or(0, |&number| device.counter(number).writes);
        let remote = self.remote.lock();
        let of_endpoints = remote
            .iter()
            .map(|&(number, kind)| kind.of(device.endpoint_counter(number)));
        of_endpoints.fold(of_regions, u64::wrapping_add)
    }

    fn failures(&self) -> u64 {
        self.errors.load(Ordering::Acquire)
    }

    fn value(&self) -> u64 {
        self.value
            .load(Ordering::SeqCst)
            .wrapping_add(self.by_device())
    }

    pub(crate) fn set(&self, value: u64) {
        let by_device = self.by_device();
        self.value
            .store(value.wrapping_sub(by_device), Ordering::Release);
    }

    /// From now on, counts remote accesses through an endpoint.
    pub(crate) fn watch(&self, endpoint: u32, kind: Remote) {
        self.domain.device.count_endpoint(endpoint);
        self.remote.lock().push((endpoint, kind));
    }

    /// Undoes [`Counter::watch`], but keeps the counts so far.
    pub(crate) fn unwatch(&self, endpoint: u32, kind: Remote) {
        let mut remote = self.remote.lock();
        let before = remote.len();
        remote.retain(|it| *it != (endpoint, kind));
        if remote.len() < before {
            self.add(kind.of(self.domain.device.endpoint_counter(endpoint)));
        }
    }

    fn progress(&self) {
        self.progress_endpoints();
        self.domain.work.run();
    }

    /// The device's number for this counter; regions can be bound to the counter from then on.
    pub(crate) fn number(self: &Arc<Self>) -> u32 {
        *self.regions.get_or_init(|| {
            let number = number();
            let this: Weak<Self> = Arc::downgrade(self);
            self.domain.counters.lock().insert(number, this);
            number
        })
    }

    pub(crate) fn attach(&self, endpoint: &Arc<impl Driven + 'static>) {
        self.endpoints.add(endpoint);
        // Threads that wait for this counter's work may now depend on one more endpoint.
        self.domain.work.wake_all();
    }

    pub(crate) fn detach(&self, endpoint: &Arc<impl Driven>) {
        self.endpoints.remove(endpoint);
    }
}

impl Counting for Counter {
    fn count(&self) {
        self.count();
    }

    fn reached(&self) -> u64 {
        self.value()
            .saturating_add(self.errors.load(Ordering::SeqCst))
    }

    fn progress_endpoints(&self) {
        for endpoint in &*self.endpoints.all() {
            endpoint.progress();
        }
    }

    fn depends_on_others(&self, than: &Attached) -> bool {
        let by_itself = self.domain.auto_progress;
        !by_itself && self.endpoints.all().iter().any(|it| !than.has(it))
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

static FID_OPS: Ops = Ops {
    close,
    control: waiting::control,
    ..nosys::OPS
};

static OPS: OpsCntr = OpsCntr {
    size: size_of::<OpsCntr>(),
    read,
    readerr,
    add,
    set,
    wait,
    adderr,
    seterr,
    export_xpu: nosys!(c_int, *mut FidCntr, *mut c_void),
};

/// `fi_cntr_open`.
///
/// # Safety
/// The arguments must be valid as described in fi_cntr(3).
pub(crate) unsafe extern "C" fn cntr_open(
    domain: *mut FidDomain,
    attr: *mut CntrAttr,
    cntr: *mut *mut FidCntr,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let (owner, attr) = unsafe { (find::<DomainObject, _>(domain)?, attr.as_ref()) };
        let (events, wait_obj, flags) = attr.map_or((0, FI_WAIT_UNSPEC, 0), |attr| {
            (attr.events, attr.wait_obj, attr.flags)
        });
        if flags != 0 {
            return Err(FiError::BADFLAGS);
        }
        if events != 0 {
            // Completions only: bytes cannot be counted.
            return Err(FiError::NOSYS);
        }
        let descriptor = match wait_obj {
            FI_WAIT_FD => Some(Wait::new()?),
            _ => None,
        };
        let inner = Counter {
            domain: Arc::clone(&owner.inner),
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            regions: OnceLock::new(),
            endpoints: Attached::default(),
            remote: Mutex::default(),
            waitable: check_object(wait_obj)?,
            descriptor,
            users: Users::default(),
        };
        let object = CntrObject {
            fid: UnsafeCell::new(FidCntr {
                fid: Fid::new(FI_CLASS_CNTR, context, &FID_OPS),
                ops: &OPS,
            }),
            inner: Arc::new(inner),
        };
        // SAFETY: the caller guarantees room for a handle.
        unsafe { publish(object, cntr)? };
        owner.inner.users.add();
        Ok(())
    })
}

/// `fi_close` of a counter: unbinds its regions, which fi_mr(3) does not allow to be closed first (FI-267, FI-I06); returns
/// `-FI_EBUSY` while endpoints or deferred work use the counter.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let counter = Arc::clone(&unsafe { find::<CntrObject, _>(fid)? }.inner);
        counter
            .users
            .none()
            .map_err(|_| busy("endpoints, regions or deferred operations that use the counter"))?;
        if let Some(&number) = counter.regions.get() {
            let domain = &counter.domain;
            domain
                .watched
                .for_each(|region| region.counter_closes(number));
            domain.counters.lock().remove(&number);
        }
        // SAFETY: the program no longer uses the counter.
        let object = unsafe { remove::<CntrObject, _>(fid)? };
        object.inner.domain.users.remove();
        Ok(())
    })
}

/// `fi_cntr_read`.
unsafe extern "C" fn read(cntr: *mut FidCntr) -> u64 {
    // SAFETY: `find` validates the handle.
    let Ok(object) = (unsafe { find::<CntrObject, _>(cntr) }) else {
        return 0;
    };
    let counter = &object.inner;
    counter.progress();
    let value = counter.value();
    if let Some(wait) = &counter.descriptor {
        wait.record(value);
    }
    value
}

/// `fi_cntr_readerr`.
unsafe extern "C" fn readerr(cntr: *mut FidCntr) -> u64 {
    // SAFETY: `find` validates the handle.
    let Ok(object) = (unsafe { find::<CntrObject, _>(cntr) }) else {
        return 0;
    };
    let counter = &object.inner;
    counter.progress();
    let errors = counter.failures();
    if let Some(wait) = &counter.descriptor {
        wait.record_errors(errors);
    }
    errors
}

/// `fi_cntr_add`.
unsafe extern "C" fn add(cntr: *mut FidCntr, value: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let counter = &unsafe { find::<CntrObject, _>(cntr)? }.inner;
        counter.add(value);
        counter.domain.work.run();
        Ok(())
    })
}

/// `fi_cntr_set`.
unsafe extern "C" fn set(cntr: *mut FidCntr, value: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let counter = &unsafe { find::<CntrObject, _>(cntr)? }.inner;
        counter.set(value);
        counter.domain.work.run();
        Ok(())
    })
}

/// `fi_cntr_adderr`.
unsafe extern "C" fn adderr(cntr: *mut FidCntr, value: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let counter = &unsafe { find::<CntrObject, _>(cntr)? }.inner;
        counter.errors.fetch_add(value, Ordering::AcqRel);
        counter.domain.work.run();
        Ok(())
    })
}

/// `fi_cntr_seterr`.
unsafe extern "C" fn seterr(cntr: *mut FidCntr, value: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let counter = &unsafe { find::<CntrObject, _>(cntr)? }.inner;
        counter.errors.store(value, Ordering::Release);
        counter.domain.work.run();
        Ok(())
    })
}

/// `fi_cntr_wait`: waits until the value reaches the threshold; returns `-FI_EAVAIL` if an error is counted during the
/// wait.
unsafe extern "C" fn wait(cntr: *mut FidCntr, threshold: u64, timeout: c_int) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let counter = &unsafe { find::<CntrObject, _>(cntr)? }.inner;
        if !counter.waitable {
            lenient::unless_strict(&lenient::UNWAITABLE, FiError::INVAL)?;
        }
        let deadline = Deadline::of(timeout);
        let errors = counter.errors.load(Ordering::Acquire);
        let mut looks = 0;
        loop {
            counter.progress();
            if counter.value() >= threshold {
                return Ok(());
            }
            if counter.errors.load(Ordering::Acquire) != errors {
                return Err(FiError::AVAIL);
            }
            if deadline.passed() {
                return Err(FiError::TIMEDOUT);
            }
            looks += 1;
            if looks > SPINS {
                time::sleep(PAUSE);
            }
        }
    })
}
