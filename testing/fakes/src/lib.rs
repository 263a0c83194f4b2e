//! Fake runtimes of accelerators: C libraries that the tests build and load under the runtime's name.
//!
//! Their memory traps when the processor touches it by its address, so a stray copy is a fault. The bytes are in a
//! second mapping, which only the fake uses. Freed addresses are reused at once.

#![allow(unsafe_code)]
// UNSAFETY: loads a library that was built a moment ago, and calls its functions.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

const COMMON: &str = include_str!("common.h");

/// A fake runtime.
#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    /// The runtime's name in the project.
    pub name: &'static str,
    /// The name under which its programs load it.
    library: &'static str,
    source: &'static str,
}

/// `libcuda.so.1`.
pub const CUDA: Runtime = Runtime {
    name: "CUDA",
    library: "libcuda.so.1",
    source: include_str!("cuda.c"),
};

/// `libhsa-runtime64.so.1`.
pub const ROCR: Runtime = Runtime {
    name: "ROCr",
    library: "libhsa-runtime64.so.1",
    source: include_str!("rocr.c"),
};

/// `libze_loader.so.1`.
pub const LEVEL_ZERO: Runtime = Runtime {
    name: "Level Zero",
    library: "libze_loader.so.1",
    source: include_str!("level_zero.c"),
};

/// `libnrt.so.1`.
pub const NEURON: Runtime = Runtime {
    name: "Neuron",
    library: "libnrt.so.1",
    source: include_str!("neuron.c"),
};

/// `libSynapse.so`.
pub const SYNAPSE_AI: Runtime = Runtime {
    name: "SynapseAI",
    library: "libSynapse.so",
    source: include_str!("synapse_ai.c"),
};

/// Where memory of a fake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Place {
    /// On the device.
    Device = 1,
    /// It migrates between host and device.
    Managed = 2,
    /// On the host.
    Host = 3,
}

/// A loaded fake. A process has at most one of each runtime, and one test at a time uses it.
#[derive(Debug)]
pub struct Fake {
    library: usize,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Runtime {
    /// Builds and loads it, for the life of the process, and waits until no other test uses a fake. `None` if this host has no
    /// C compiler; the test says that it is skipped.
    ///
    /// # Panics
    /// The library cannot be built or loaded.
    #[must_use]
    pub fn load(&self) -> Option<Fake> {
        static LOADED: Mutex<Vec<(&str, usize)>> = Mutex::new(Vec::new());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = loaded.iter().find(|(name, _)| *name == self.name);
        let library = match known {
            Some((_, library)) => *library,
            None => {
                let library = self.open()?;
                loaded.push((self.name, library));
                library
            }
        };
        let fake = Fake {
            library,
            _alone: alone,
        };
        fake.fail(0);
        Some(fake)
    }

    fn open(&self) -> Option<usize> {
        let Some(path) = self.build() else {
            println!("skipped: no C compiler is installed");
            return None;
        };
        let name = CString::new(path.to_str().expect("the path is UTF-8")).expect("no NUL in it");
        // SAFETY: our own library; its name is that of the runtime, so it is found under that name from now on.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "cannot load {}", path.display());
        let _ = std::fs::remove_file(&path);
        Some(library as usize)
    }

    fn build(&self) -> Option<PathBuf> {
        let name = format!("rkey-fake-{}-{}", self.library, std::process::id());
        let place = |end: &str| std::env::temp_dir().join(format!("{name}.{end}"));
        let (source, library) = (place("c"), place("so"));
        std::fs::write(&source, [COMMON, self.source].concat()).expect("cannot write the source");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&library)
            .arg(&source)
            .arg(format!("-Wl,-soname,{}", self.library))
            .arg("-lpthread")
            .status();
        let _ = std::fs::remove_file(&source);
        match built {
            Ok(status) => {
                assert!(status.success(), "cannot build {}", self.library);
                Some(library)
            }
            Err(_) => None,
        }
    }
}

/// A DMA-buf from the kernel's driver `/dev/udmabuf`, and the memfd that has its pages. `None`, with a message, if this
/// host does not have the driver.
///
/// # Panics
/// The driver exists but does not create a buffer.
#[must_use]
pub fn dma_buf(len: usize) -> Option<(OwnedFd, OwnedFd)> {
    // SAFETY: names, and structures of their calls; new descriptors.
    unsafe {
        let driver = libc::open(c"/dev/udmabuf".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if driver < 0 {
            println!("skipped: /dev/udmabuf cannot be opened, so there is no DMA-buf");
            return None;
        }
        let driver = OwnedFd::from_raw_fd(driver);
        let flags = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
        let pages = OwnedFd::from_raw_fd(libc::memfd_create(c"pages".as_ptr(), flags));
        assert_eq!(libc::ftruncate(pages.as_raw_fd(), len as i64), 0);
        let sealed = libc::fcntl(pages.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
        assert_eq!(sealed, 0);
        // `struct udmabuf_create`, and `UDMABUF_CREATE`.
        let create = Create {
            memfd: pages.as_raw_fd(),
            flags: 1,
            offset: 0,
            size: len as u64,
        };
        let request = 1 << 30 | (size_of::<Create>() << 16) as u32 | 0x75 << 8 | 0x42;
        let made = libc::ioctl(
            driver.as_raw_fd(),
            request as libc::Ioctl,
            &raw const create,
        );
        assert!(made >= 0, "{}", std::io::Error::last_os_error());
        Some((OwnedFd::from_raw_fd(made), pages))
    }
}

#[repr(C)]
struct Create {
    memfd: i32,
    flags: u32,
    offset: u64,
    size: u64,
}

macro_rules! call {
    ($fake:expr, $name:literal: $type:ty, $($argument:expr),*) => {{
        // SAFETY: a loaded library, and the type of its function.
        unsafe {
            let name: *const c_char = concat!($name, "\0").as_ptr().cast();
            let function = libc::dlsym($fake.library as *mut c_void, name);
            assert!(!function.is_null(), $name);
            std::mem::transmute::<*mut c_void, $type>(function)($($argument),*)
        }
    }};
}

impl Fake {
    /// Allocates memory.
    ///
    /// # Panics
    /// There is no room.
    #[must_use]
    pub fn alloc(&self, place: Place, device: i32, len: usize) -> u64 {
        let at = call!(
            self,
            "fake_alloc": unsafe extern "C" fn(c_int, c_int, u64) -> u64,
            place as c_int,
            device,
            len as u64
        );
        assert_ne!(at, 0, "the fake has no memory left");
        at
    }

    /// Frees an allocation.
    ///
    /// # Panics
    /// There is no allocation at this address.
    pub fn free(&self, at: u64) {
        let code = call!(self, "fake_free": unsafe extern "C" fn(u64) -> c_int, at);
        assert_eq!(code, 0);
    }

    /// The bytes of its memory.
    #[must_use]
    pub fn peek(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; len];
        let into = bytes.as_mut_ptr().cast();
        call!(self, "fake_peek": unsafe extern "C" fn(u64, *mut c_void, u64), at, into, len as u64);
        bytes
    }

    /// Changes bytes of the fake's memory.
    pub fn poke(&self, at: u64, bytes: &[u8]) {
        let (from, len) = (bytes.as_ptr().cast(), bytes.len() as u64);
        call!(self, "fake_poke": unsafe extern "C" fn(u64, *const c_void, u64), at, from, len);
    }

    /// How many copies were requested.
    #[must_use]
    pub fn copies(&self) -> u64 {
        call!(self, "fake_copies": unsafe extern "C" fn() -> u64,)
    }

    /// Makes the `n`-th copy from now on fail, and all later ones; 0 turns this off. With 1, SynapseAI has no host memory either.
    pub fn fail(&self, n: u64) {
        call!(self, "fake_fail": unsafe extern "C" fn(u64), n);
    }

    /// How many streams were created (SynapseAI).
    #[must_use]
    pub fn streams(&self) -> u64 {
        call!(self, "fake_streams": unsafe extern "C" fn() -> u64,)
    }

    /// How many contexts the calling thread has pushed (CUDA).
    #[must_use]
    pub fn depth(&self) -> i32 {
        call!(self, "fake_depth": unsafe extern "C" fn() -> c_int,)
    }
}
