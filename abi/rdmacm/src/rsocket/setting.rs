//! `rsetsockopt`, `rgetsockopt`, `rfcntl`.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::options::{self, Options};
use super::socket::{Phase, State};
use super::table::{self, Any};
use super::waiting::Progress;
use rkey_kit::argument::output;
use rkey_kit::{Errno, c_call_or_minus_one};
use std::ffi::{c_int, c_long, c_void};
use std::time::Duration;

/// The level of RDMA options, and their names.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// Boolean options without effect. Their indexes are bits in [`Options::switches`].
const SWITCHES: [(c_int, c_int); 4] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
];
/// The options in [`Options::keepalive`].
const KEEPALIVE: [c_int; 3] = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
/// The value that `TCP_MAXSEG` reports.
const SEGMENT: c_int = 4096;
/// States of TCP, as `TCP_INFO` reports them.
const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// Reads the value of an option. It must be at least as long as the option's type.
///
/// # Safety
/// If not null, it points to `len` bytes.
unsafe fn value<T: Copy>(at: *const c_void, len: libc::socklen_t) -> Result<T, Errno> {
    if at.is_null() {
        return Err(Errno::FAULT);
    }
    if (len as usize) < size_of::<T>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null and long enough; it may be unaligned. The types have only numbers.
    Ok(unsafe { at.cast::<T>().read_unaligned() })
}

fn time(value: libc::timeval) -> Result<Option<Duration>, Errno> {
    let seconds = u64::try_from(value.tv_sec).map_err(|_| Errno::from_raw(libc::EDOM))?;
    let micros = u64::try_from(value.tv_usec).map_err(|_| Errno::from_raw(libc::EDOM))?;
    let time = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    Ok((!time.is_zero()).then_some(time))
}

/// Whether the queue pair exists or is being created, so that its sizes are fixed.
fn is_fixed(state: &State) -> bool {
    !matches!(
        state.phase,
        Phase::New | Phase::Listening(_) | Phase::Refused(_)
    )
}

unsafe fn set(
    own: &mut Options,
    is_fixed: bool,
    (level, name): (c_int, c_int),
    at: *const c_void,
    len: libc::socklen_t,
) -> Result<(), Errno> {
    if let Some(bit) = SWITCHES.iter().position(|it| *it == (level, name)) {
        // SAFETY: guaranteed by the caller.
        match unsafe { value::<c_int>(at, len) }? {
            0 => own.switches &= !(1 << bit),
            _ => own.switches |= 1 << bit,
        }
        return Ok(());
    }
    if level == SOL_RDMA && is_fixed {
        return Err(Errno::INVAL);
    }
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            // SAFETY: guaranteed by the caller.
            let linger = unsafe { value::<libc::linger>(at, len) }?;
            let seconds = u64::try_from(linger.l_linger).unwrap_or(0);
            own.linger = (linger.l_onoff != 0).then(|| Duration::from_secs(seconds));
            return Ok(());
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
            // SAFETY: guaranteed by the caller.
            let time = time(unsafe { value(at, len) }?)?;
            match name {
                libc::SO_RCVTIMEO => own.receive_timeout = time,
                _ => own.send_timeout = time,
            }
            return Ok(());
        }
        _ => {}
    }
    // SAFETY: guaranteed by the caller.
    let value = unsafe { value::<c_int>(at, len) }?;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => own.reuse_address = value != 0,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if is_fixed => {}
        (libc::SOL_SOCKET, libc::SO_RCVBUF) if is_fixed => {}
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => own.send_bytes = options::ring(value),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => own.receive_bytes = options::ring(value),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => own.one_family = Some(value != 0),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {}
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
            let at = KEEPALIVE.iter().position(|it| *it == name).unwrap_or(0);
            own.keepalive[at] = u32::try_from(value).map_err(|_| Errno::INVAL)?;
        }
        (SOL_RDMA, RDMA_SQSIZE) => own.send_requests = options::requests(value)?,
        (SOL_RDMA, RDMA_RQSIZE) => own.credits = options::requests(value)?,
        (SOL_RDMA, RDMA_INLINE) => own.inline = u32::try_from(value).map_err(|_| Errno::INVAL)?,
        (SOL_RDMA, RDMA_IOMAPSIZE) => own.iomaps = options::areas(value)?,
        _ => return Err(Errno::OPNOTSUPP),
    }
    Ok(())
}

/// `rsetsockopt`.
///
/// # Safety
/// `at` points to `len` bytes.
pub unsafe extern "C" fn rsetsockopt(
    number: c_int,
    level: c_int,
    name: c_int,
    at: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    c_call_or_minus_one(|| {
        let option = (level, name);
        match table::find(number)? {
            Any::Stream(socket) => {
                let mut state = socket.state.lock();
                let is_fixed = is_fixed(&state);
                // SAFETY: guaranteed by the caller.
                unsafe { set(&mut state.options, is_fixed, option, at, len) }?;
            }
            Any::Datagram(socket) => {
                let own = &mut socket.state.lock().options;
                // SAFETY: guaranteed by the caller.
                unsafe { set(own, false, option, at, len) }?;
            }
        }
        Ok(0)
    })
}

/// `SO_ERROR`: returns the error of a failed attempt or connection, and clears it.
fn take_error(state: &mut State) -> c_int {
    state.progress();
    match &mut state.phase {
        Phase::Refused(error) if !state.is_reported => {
            let error = error.raw();
            state.is_reported = true;
            error
        }
        Phase::Open(connection) => connection.error.take().map_or(0, Errno::raw),
        _ => 0,
    }
}

/// `TCP_INFO`: the state and the segment size; the counters of TCP have no meaning here.
fn tcp_info(state: &State) -> libc::tcp_info {
    // SAFETY: all fields are numbers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    info.tcpi_state = match &state.phase {
        Phase::Open(connection) if !connection.stream().has_ended() => ESTABLISHED,
        Phase::Connecting(_) => SYN_SENT,
        Phase::Listening(_) => LISTEN,
        _ => CLOSE,
    };
    (info.tcpi_snd_mss, info.tcpi_rcv_mss) = (SEGMENT as u32, SEGMENT as u32);
    info
}

/// Reads an option that only streams have.
fn get_of_stream(state: &mut State, option: (c_int, c_int)) -> Option<c_int> {
    match option {
        (libc::SOL_SOCKET, libc::SO_ERROR) => Some(take_error(state)),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            Some(matches!(state.phase, Phase::Listening(_)).into())
        }
        _ => None,
    }
}

fn get(own: &Options, (level, name): (c_int, c_int)) -> Result<c_int, Errno> {
    if let Some(bit) = SWITCHES.iter().position(|it| *it == (level, name)) {
        return Ok(c_int::from(own.switches & 1 << bit != 0));
    }
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => own.reuse_address.into(),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => own.send_bytes as c_int,
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => own.receive_bytes as c_int,
        (libc::SOL_SOCKET, libc::SO_TYPE) => own.kind,
        (libc::SOL_SOCKET, libc::SO_ERROR | libc::SO_ACCEPTCONN) => 0,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => own.family,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => match own.kind {
            libc::SOCK_STREAM => libc::IPPROTO_TCP,
            _ => libc::IPPROTO_UDP,
        },
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => own.one_family.unwrap_or(false).into(),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => SEGMENT,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => own.keepalive[0] as c_int,
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => own.keepalive[1] as c_int,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => own.keepalive[2] as c_int,
        (SOL_RDMA, RDMA_SQSIZE) => own.send_requests as c_int,
        (SOL_RDMA, RDMA_RQSIZE) => own.credits as c_int,
        (SOL_RDMA, RDMA_INLINE) => own.inline as c_int,
        (SOL_RDMA, RDMA_IOMAPSIZE) => own.iomaps.into(),
        _ => return Err(Errno::OPNOTSUPP),
    })
}

/// `rgetsockopt`.
///
/// # Safety
/// `at` and `len` are null or valid for writes of a value and its length.
pub unsafe extern "C" fn rgetsockopt(
    number: c_int,
    level: c_int,
    name: c_int,
    at: *mut c_void,
    len: *mut libc::socklen_t,
) -> c_int {
    c_call_or_minus_one(|| {
        let (socket, option) = (table::find(number)?, (level, name));
        if at.is_null() || len.is_null() {
            return Err(Errno::FAULT);
        }
        let (own, special, info) = match socket {
            Any::Stream(socket) => {
                let mut state = socket.state.lock();
                let special = get_of_stream(&mut state, option);
                (state.options, special, Some(tcp_info(&state)))
            }
            Any::Datagram(socket) => (socket.state.lock().options, None, None),
        };
        let (linger, number);
        let (bytes, size): (*const u8, usize) = match option {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let own = own.linger;
                linger = libc::linger {
                    l_onoff: own.is_some().into(),
                    l_linger: own.map_or(0, |time| time.as_secs() as c_int),
                };
                ((&raw const linger).cast(), size_of::<libc::linger>())
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                let info = info.as_ref().ok_or(Errno::OPNOTSUPP)?;
                ((&raw const *info).cast(), size_of::<libc::tcp_info>())
            }
            _ => {
                number = special.map_or_else(|| get(&own, option), Ok)?;
                ((&raw const number).cast(), size_of::<c_int>())
            }
        };
        // SAFETY: not null, and the caller guarantees that as many bytes as `len` says can be written.
        unsafe {
            let len = output(len)?;
            let here = size.min(*len as usize);
            std::ptr::copy_nonoverlapping(bytes, at.cast::<u8>(), here);
            *len = here as libc::socklen_t;
        }
        Ok(0)
    })
}

/// `rfcntl`. It is variadic in C. The Linux ABIs that we support pass a variadic integer like a named one.
pub extern "C" fn rfcntl(number: c_int, command: c_int, argument: c_long) -> c_int {
    c_call_or_minus_one(|| {
        let socket = table::find(number)?;
        match command {
            libc::F_GETFL => {
                let flag = libc::O_NONBLOCK * c_int::from(socket.waiting().is_nonblocking());
                Ok(libc::O_RDWR | flag)
            }
            libc::F_SETFL => {
                let flags = argument as c_int;
                socket
                    .waiting()
                    .set_nonblocking(flags & libc::O_NONBLOCK != 0);
                Ok(0)
            }
            libc::F_GETFD | libc::F_SETFD => {
                // SAFETY: our own descriptor, and commands that take a number.
                let done =
                    unsafe { libc::fcntl(socket.waiting().number(), command, argument as c_int) };
                match done {
                    ..0 => Err(Errno::last()),
                    done => Ok(done),
                }
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    })
}
