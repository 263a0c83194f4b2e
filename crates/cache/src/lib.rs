//! A cache of memory registrations that never returns a stale one.
//!
//! Registering memory with a network device is slow, so programs that do not manage their buffers go through a cache:
//! the second transfer from a buffer uses the registration of the first. But memory can be unmapped, moved and
//! discarded without the cache's knowledge, and if the registration pins pages, the device then sends old data. Other
//! caches learn of changes from events or hooks, and may use a stale entry between a change and its event. This one
//! does not.
//!
//! * It is generic over the [registrar](Registrar), which says what its registrations [refer to](Follows): addresses,
//!   objects or pages. A hit makes only the checks that this requires.
//! * It is generic over the [monitor](Monitor), which notices changes through the kernel ([`Userfaultfd`]), through
//!   intercepted calls ([`Memhooks`]), or from the program or another library ([`Imported`]).
//! * A hit takes no lock and writes only to its entry and to a hint. It makes no system call, unless the registrar follows
//!   objects, or pins pages and the monitor is [`Userfaultfd`]; then it makes one (0.3 µs). For more than 16 pages,
//!   [`Userfaultfd`] needs two for each mapping.
//! * A hit may lie inside a larger entry. It never has a right that the entry lacks, and never another kind of memory.
//! * When a limit is exceeded, idle entries are evicted, least recently used first.
//! * Every lookup says [why](Why) it was a hit or a miss.
//!
//! ```
//! use rkey_base::range::VaRange;
//! use rkey_cache::{Cache, Follows, Imported, Kind, Options, Registrar, Request, Rights, Timing, Why};
//! use std::sync::Arc;
//!
//! struct Device;
//!
//! impl Registrar for Device {
//!     type Registration = u64;
//!     type Error = std::convert::Infallible;
//!
//!     fn follows(&self) -> Follows {
//!         Follows::Addresses
//!     }
//!     fn register(&self, request: &Request) -> Result<u64, Self::Error> {
//!         Ok(request.range.start()) // a real device would return a key
//!     }
//!     fn deregister(&self, _: u64) {}
//! }
//!
//! let monitor = Arc::new(Imported::new((), Timing::Around));
//! let cache = Cache::new(Device, monitor.clone(), Options::default())?;
//! let buffer = VaRange::new(0x1000, 0x1000).unwrap();
//!
//! let send = cache.get(buffer, Rights(1), Kind::HOST)?;
//! assert_eq!(send.why(), Why::Absent);
//! drop(send);
//! assert_eq!(cache.get(buffer, Rights(1), Kind::HOST)?.why(), Why::Hit);
//!
//! monitor.notify(buffer);
//! assert!(!cache.get(buffer, Rights(1), Kind::HOST)?.why().is_hit());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | `request` | rights and kinds of memory |
//! | `registrar` | registers memory for the cache |
//! | `why` | why a lookup was a hit or a miss |
//! | `table` | entries: how they begin and end, how they are found |
//! | `monitor` | notices changes of memory |
//! | `cache` | the cache: lookups, limits, counters |
//! | `settings` | the environment variables of `fi_mr(3)` |
//! | `maps` | what is mapped at an address |
//! | `sync` | atomics, or loom's |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod cache;
mod maps;
mod monitor;
mod registrar;
mod request;
mod settings;
mod sync;
mod table;
mod why;

pub use cache::guard::Guard;
pub use cache::options::{Invalid, Options, Rounding};
pub use cache::stats::{Event, Stats};
pub use cache::{Cache, NotMade};
pub use maps::Backing;
pub use monitor::disabled::Disabled;
pub use monitor::imported::{Change, Imported, Source, Timing};
pub use monitor::memhooks::{Memhooks, NotHooked, Path};
pub use monitor::unneeded::Unneeded;
pub use monitor::userfaultfd::{OpenMethod, Reader, Step, Unavailable, Userfaultfd};
pub use monitor::{Monitor, Sees, TooManyCaches, Verdict};
pub use registrar::{Follows, Registrar, Request};
pub use request::{Kind, Rights};
pub use settings::{Chosen, Ignored, MonitorName, Settings, variables};
pub use table::entries::Entries;
pub use why::{Cause, Off, Refusal, Why};
