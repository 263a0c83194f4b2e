//! The signal handlers that turn a fault inside the guarded code into a return value.
//!
//! A fault anywhere else goes to the previous handler of the signal, so that a crash still ends the process, and debuggers,
//! language runtimes and crash reporters still work.
//!
//! A program may install its own handler over ours at any time. We then install ours again on top, as another *layer*
//! with its own predecessor: if the program's handler chains to the one that it displaced, which is our lower layer,
//! the chain still ends instead of looping. We recognise another copy of this library in the same process (two plugins,
//! each with its own) by a mark before its handler's first instruction; such a handler chains to ours, so it needs no
//! action.

// UNSAFETY: signal handlers edit register contexts and call function pointers from the kernel.

use super::routine;
use parking_lot::Mutex;
use std::arch::global_asm;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The maximum number of layers, including the first.
const LAYERS: usize = 4;

const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The eight bytes before the first instruction of a handler of this library (any copy and any version of it).
pub(super) const MARK: u64 = u64::from_le_bytes(*b"rkeyFLT1");

/// The handler that each layer displaced, per signal. It is set before the layer's handler is installed, and leaked
/// because a handler may be reading it.
static PREVIOUS: [[AtomicPtr<libc::sigaction>; LAYERS]; 2] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; LAYERS] }; 2];

/// How many layers are installed, per signal.
static INSTALLED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Allows one installation at a time.
static INSTALLING: Mutex<()> = Mutex::new(());

macro_rules! entry {
    ($name:literal, $target:literal) => {
        concat!(
            ".p2align 4\n.quad 0\n.quad {mark}\n.hidden ",
            $name,
            "\n.globl ",
            $name,
            "\n.type ",
            $name,
            ",@function\n",
            $name,
            ":\n.cfi_startproc\nendbr64\njmp {",
            $target,
            "}\n.cfi_endproc\n.size ",
            $name,
            ", . - ",
            $name,
            "\n"
        )
    };
}

// Entry points, each preceded by our mark. An entry only jumps, so that the handlers themselves can be written in Rust.
global_asm!(
    ".pushsection .text.rkey_base_handlers,\"ax\",@progbits",
    entry!("rkey_base_on_fault_0", "layer0"),
    entry!("rkey_base_on_fault_1", "layer1"),
    entry!("rkey_base_on_fault_2", "layer2"),
    entry!("rkey_base_on_fault_3", "layer3"),
    ".popsection",
    mark = const MARK,
    layer0 = sym on_fault::<0>,
    layer1 = sym on_fault::<1>,
    layer2 = sym on_fault::<2>,
    layer3 = sym on_fault::<3>,
);

unsafe extern "C" {
    fn rkey_base_on_fault_0();
    fn rkey_base_on_fault_1();
    fn rkey_base_on_fault_2();
    fn rkey_base_on_fault_3();
}

fn entry(layer: usize) -> usize {
    let entries: [unsafe extern "C" fn(); LAYERS] = [
        rkey_base_on_fault_0,
        rkey_base_on_fault_1,
        rkey_base_on_fault_2,
        rkey_base_on_fault_3,
    ];
    entries[layer] as *const () as usize
}

/// Installs the first layer unless it is already installed.
pub(super) fn install() -> io::Result<()> {
    let _installing = INSTALLING.lock();
    for (signal, layers) in INSTALLED.iter().enumerate() {
        if layers.load(Ordering::Acquire) == 0 {
            add_layer(signal)?;
        }
    }
    Ok(())
}

/// Whether a fault inside the guarded code would reach our handler.
pub(super) fn in_place() -> bool {
    (0..SIGNALS.len()).all(|signal| match current(signal) {
        Ok(action) => reaches_us(action.sa_sigaction),
        Err(_) => false,
    })
}

/// Installs our handlers on top of the ones that displaced them.
///
/// # Errors
///
/// When the kernel refuses, or no layer is left.
pub(super) fn reinstall() -> io::Result<()> {
    let _installing = INSTALLING.lock();
    for signal in 0..SIGNALS.len() {
        if !reaches_us(current(signal)?.sa_sigaction) {
            add_layer(signal)?;
        }
    }
    Ok(())
}

/// Whether `handler` belongs to this copy of the library, or to another copy.
fn reaches_us(handler: usize) -> bool {
    if (0..LAYERS).any(|layer| entry(layer) == handler) {
        return true;
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return false;
    }
    let Some(mark) = handler.checked_sub(size_of::<u64>()) else {
        return false;
    };
    let mut word = [0u8; size_of::<u64>()];
    // The kernel reads the bytes for us, so they need not be mapped.
    super::kernel::read(&mut word, mark as u64) && u64::from_ne_bytes(word) == MARK
}

fn current(signal: usize) -> io::Result<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: this is a query: it passes no new action, and `action` is valid for writing one.
    if unsafe { libc::sigaction(SIGNALS[signal], ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it filled `action`.
    Ok(unsafe { action.assume_init() })
}

/// Installs one more layer. The caller holds `INSTALLING`.
fn add_layer(signal: usize) -> io::Result<()> {
    let layer = INSTALLED[signal].load(Ordering::Relaxed);
    if layer >= LAYERS {
        return Err(io::Error::other(
            "the program has replaced the fault handlers too many times",
        ));
    }
    let previous = current(signal)?;
    let remembered = Box::leak(Box::new(previous));
    // Stored before the handler is installed, so that the handler always finds its predecessor.
    PREVIOUS[signal][layer].store(remembered, Ordering::Release);

    // SAFETY: all zeros is a valid `sigaction` (default action, empty mask, no flags).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = entry(layer);
    // ONSTACK: the next handler must still be able to report stack overflows. NODEFER: a chained handler that never
    // returns (it may jump away) must not leave the signal blocked.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    let mut displaced = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the action names a handler of the three-argument kind that lives as long as the program, and `displaced`
    // is valid for writing.
    if unsafe { libc::sigaction(SIGNALS[signal], &raw const action, displaced.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it filled `displaced`.
    let displaced = unsafe { displaced.assume_init() };
    if displaced.sa_sigaction != previous.sa_sigaction {
        // Another thread changed the handler between the query and the installation.
        PREVIOUS[signal][layer].store(Box::leak(Box::new(displaced)), Ordering::Release);
    }
    INSTALLED[signal].store(layer + 1, Ordering::Release);
    Ok(())
}

/// The handler of layer `LAYER`. Runs in signal context: it allocates nothing, locks nothing and calls only
/// async-signal-safe functions.
unsafe extern "C" fn on_fault<const LAYER: usize>(
    number: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler installed with SA_SIGINFO, and a handler that chains
    // to us passes on its arguments.
    let code = unsafe { (*info).si_code };
    // A code above 0 comes from the kernel, for exactly this instruction; others come from a process (`kill`).
    if code > 0 {
        // SAFETY: as above for the context, which the handler may change: it is loaded back when the handler returns.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let pc = registers[libc::REG_RIP as usize] as usize;
        if let Some(landing) = routine::landing(pc) {
            const SI_KERNEL: libc::c_int = 0x80;
            let address = if code == SI_KERNEL {
                routine::UNKNOWN_ADDRESS
            } else {
                // SAFETY: `si_addr` is set for a SIGSEGV or SIGBUS that the kernel raised for an instruction.
                unsafe { (*info).si_addr() as u64 }
            };
            registers[libc::REG_RAX as usize] = address as i64;
            registers[libc::REG_RIP as usize] = landing as i64;
            return;
        }
    }
    // SAFETY: the arguments are the kernel's, passed on unchanged.
    unsafe { chain(LAYER, number, info, context) }
}

/// Does what would have happened if this layer had not been installed.
unsafe fn chain(
    layer: usize,
    number: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let signal = usize::from(number == libc::SIGBUS);
    let previous = PREVIOUS[signal][layer].load(Ordering::Acquire);
    // SAFETY: a non-null pointer here was leaked from a box by `add_layer`, so it stays valid.
    let Some(previous) = (unsafe { previous.as_ref() }) else {
        // SAFETY: see `die`.
        return unsafe { die(number, info) };
    };
    match previous.sa_sigaction {
        libc::SIG_DFL => {
            // SAFETY: see `die`; `info` is the kernel's.
            unsafe { die(number, info) };
        }
        libc::SIG_IGN => {
            // The kernel ignores only signals that were sent; a fault at an instruction still kills the process.
            // SAFETY: `info` is the kernel's.
            if unsafe { (*info).si_code } > 0 {
                // SAFETY: see `die`.
                unsafe { die(number, info) };
            }
        }
        handler => {
            // The kernel would have blocked these signals while the handler runs.
            let mut mask = previous.sa_mask;
            let mut restore = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: the sets are valid for the calls; `restore` is filled by the second one, and used by the last one
            // only after that; all three functions are async-signal-safe. The handler pointer came from the kernel
            // together with the flag that says which of the two signatures it has.
            unsafe {
                if previous.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&raw mut mask, number);
                }
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, restore.as_mut_ptr());
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    type WithInfo =
                        extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                    let handler = std::mem::transmute::<usize, WithInfo>(handler);
                    handler(number, info, context);
                } else {
                    let handler = std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler);
                    handler(number);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, restore.as_ptr(), ptr::null_mut());
            }
        }
    }
}

/// Applies the signal's default effect, which ends the process.
unsafe fn die(number: libc::c_int, info: *mut libc::siginfo_t) {
    // SAFETY: all zeros is the default action; `signal`-type functions are async-signal-safe. A fault repeats when the
    // handler returns to its instruction, and then ends the process; a signal that was sent must be resent.
    unsafe {
        let action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, &raw const action, ptr::null_mut());
        if (*info).si_code <= 0 {
            libc::raise(number);
        }
    }
}

/// Unblocks the two signals in the calling thread: the kernel kills a process whose thread faults with them blocked.
pub(super) fn unblock() -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` fills the set before the others use it; the signal numbers are valid.
    let error = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut())
    };
    if error == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(error))
    }
}
