//! The slots through which loaded objects call functions of other objects: relocations of the types `JUMP_SLOT` and `GLOB_DAT`,
//! and pointers to functions in data.

// UNSAFETY: walks the dynamic linker's tables, and stores to the slots that they name.
#![allow(unsafe_code)]

use super::calls;
use linux_raw_sys::general::{PROT_READ, PROT_WRITE};
use rkey_base::process::page_size;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

// The types of relocations, `<elf.h>`: `JUMP_SLOT`, `GLOB_DAT`, and pointers.
#[cfg(target_arch = "x86_64")]
const KINDS: [u32; 3] = [7, 6, 1];
#[cfg(target_arch = "aarch64")]
const KINDS: [u32; 3] = [1026, 1025, 257];
const JUMP_SLOT: u32 = KINDS[0];

/// `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

/// The parts of a loaded object that matter here.
#[derive(Default)]
struct Object {
    base: u64,
    /// The end of what is loaded.
    end: u64,
    strings: u64,
    symbols: u64,
    tables: [(u64, u64); 2],
    /// The range that the linker made read-only after it had filled in the slots.
    read_only: (u64, u64),
}

fn pointer<T>(address: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// How many objects have ever been loaded.
pub(super) fn loaded() -> u64 {
    let mut count = 0_u64;
    // SAFETY: the callback matches the type, and the pointer lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(count_loads), (&raw mut count).cast()) };
    count
}

unsafe extern "C" fn count_loads(
    info: *mut libc::dl_phdr_info,
    _: usize,
    count: *mut c_void,
) -> c_int {
    // SAFETY: the linker passes a valid description, and `loaded` a pointer to its count.
    unsafe { *count.cast() = (*info).dlpi_adds };
    1
}

/// Counts of the slots for functions that have hooks.
#[derive(Debug, Default)]
pub(super) struct Count {
    /// The number of slots that point to hooks.
    pub(super) hooked: usize,
    /// The number of slots that the linker has not filled in yet, because another thread is loading the object.
    pub(super) unfilled: usize,
}

/// Sets the slots of all loaded objects.
pub(super) fn set_all() -> Count {
    let mut count = Count::default();
    // SAFETY: as in `loaded`.
    unsafe { libc::dl_iterate_phdr(Some(set_object), (&raw mut count).cast()) };
    count
}

unsafe extern "C" fn set_object(
    info: *mut libc::dl_phdr_info,
    _: usize,
    count: *mut c_void,
) -> c_int {
    // SAFETY: the linker passes a valid description of an object that stays loaded during the call.
    let object = unsafe { describe(&*info) };
    if let Some(object) = object {
        // SAFETY: `set_all` passes a pointer to its count, and the object is as described.
        unsafe { set_slots(&object, &mut *count.cast::<Count>()) };
    }
    0
}

/// A function that the program calls at a fixed address, through code of its own (its procedure linkage table). In a program
/// that is not position-independent, that code counts as the function's address, even for `dlsym`.
pub(super) struct Stub<'a> {
    pub(super) name: &'a CStr,
    pub(super) address: usize,
}

/// Whether an address that `dlsym` returned is a [`Stub`].
pub(super) fn is_stub(stub: &Stub<'_>) -> bool {
    let mut question = (stub, false);
    // SAFETY: as in `loaded`.
    unsafe { libc::dl_iterate_phdr(Some(has_stub), (&raw mut question).cast()) };
    question.1
}

unsafe extern "C" fn has_stub(
    info: *mut libc::dl_phdr_info,
    _: usize,
    question: *mut c_void,
) -> c_int {
    // SAFETY: `is_stub` passes a pointer to its question, and the linker a valid description, as in `set_object`.
    let ((stub, found), object) = unsafe {
        let question = &mut *question.cast::<(&Stub<'_>, bool)>();
        (question, describe(&*info))
    };
    if let Some(object) = object {
        // SAFETY: the object is as described.
        unsafe {
            each_slot(&object, |slot| {
                let address = object.base.wrapping_add(slot.symbol.st_value) as usize;
                *found |= slot.symbol.st_shndx == 0
                    && slot.symbol.st_value != 0
                    && address == stub.address
                    && slot.name == stub.name;
            });
        }
    }
    c_int::from(*found)
}

/// The paths of the loaded libraries, in the order in which the linker searches them.
pub(super) fn libraries() -> Vec<CString> {
    let mut names = Vec::<CString>::new();
    // SAFETY: as in `loaded`.
    unsafe { libc::dl_iterate_phdr(Some(add_name), (&raw mut names).cast()) };
    names
}

unsafe extern "C" fn add_name(
    info: *mut libc::dl_phdr_info,
    _: usize,
    names: *mut c_void,
) -> c_int {
    // SAFETY: `libraries` passes a pointer to its list; the linker's name of an object is null or a C string.
    unsafe {
        let name = (*info).dlpi_name;
        // The program's own name is empty.
        if !name.is_null() && *name != 0 {
            (*names.cast::<Vec<CString>>()).push(CStr::from_ptr(name).to_owned());
        }
    }
    0
}

/// # Safety
/// The linker has passed `info`, and has not returned.
unsafe fn describe(info: &libc::dl_phdr_info) -> Option<Object> {
    // SAFETY: the linker names the program headers of the object, which are loaded.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr;
    let mut object = Object {
        base,
        ..Object::default()
    };
    let mut dynamic = None;
    for header in headers {
        let start = base.wrapping_add(header.p_vaddr);
        match header.p_type {
            libc::PT_LOAD => object.end = object.end.max(start + header.p_memsz),
            libc::PT_DYNAMIC => dynamic = Some(start),
            libc::PT_GNU_RELRO => object.read_only = (start, start + header.p_memsz),
            _ => {}
        }
    }
    let mut entry = pointer::<Dynamic>(dynamic?);
    // glibc stores addresses; musl and the kernel's vDSO store offsets.
    let address = |value: u64| if value < base { base + value } else { value };
    let (mut plt, mut rela) = ((0, 0), (0, 0));
    loop {
        // SAFETY: the dynamic section ends with a null entry, which ends this loop.
        let Dynamic { tag, value } = unsafe { entry.read() };
        match tag {
            DT_NULL => break,
            DT_STRTAB => object.strings = address(value),
            DT_SYMTAB => object.symbols = address(value),
            DT_JMPREL => plt.0 = address(value),
            DT_PLTRELSZ => plt.1 = value,
            DT_RELA => rela.0 = address(value),
            DT_RELASZ => rela.1 = value,
            _ => {}
        }
        // SAFETY: not the last entry.
        entry = unsafe { entry.add(1) };
    }
    object.tables = [plt, rela];
    (object.strings != 0 && object.symbols != 0).then_some(object)
}

/// A slot for a function.
struct Slot<'a> {
    name: &'a CStr,
    symbol: &'a libc::Elf64_Sym,
    address: u64,
    /// The type of the relocation.
    kind: u32,
}

/// Calls `each` with every slot of an object.
///
/// # Safety
/// The object is loaded, and `describe` has described it.
unsafe fn each_slot(object: &Object, mut each: impl FnMut(&Slot<'_>)) {
    for (start, len) in object.tables {
        if start == 0 {
            continue;
        }
        for index in 0..len as usize / size_of::<Relocation>() {
            // SAFETY: the linker has mapped this table, which has that many elements.
            let relocation = unsafe { &*pointer::<Relocation>(start).add(index) };
            let kind = relocation.info as u32;
            if !KINDS.contains(&kind) || relocation.addend != 0 {
                continue;
            }
            let symbols = pointer::<libc::Elf64_Sym>(object.symbols);
            // SAFETY: the relocation names this symbol of the object, whose name is in its table of strings.
            let (symbol, name) = unsafe {
                let symbol = &*symbols.add((relocation.info >> 32) as usize);
                let name = object.strings + u64::from(symbol.st_name);
                (symbol, CStr::from_ptr(pointer::<c_char>(name)))
            };
            each(&Slot {
                name,
                symbol,
                address: object.base.wrapping_add(relocation.offset),
                kind,
            });
        }
    }
}

/// # Safety
/// The object is loaded, and `describe` has described it.
unsafe fn set_slots(object: &Object, count: &mut Count) {
    let each = |slot: &Slot<'_>| {
        let Some((original, hook)) = calls::hook_of(slot.name) else {
            return;
        };
        let function = Function {
            original,
            hook,
            own: (slot.symbol.st_shndx != 0)
                .then(|| object.base.wrapping_add(slot.symbol.st_value) as usize),
            late: slot.kind == JUMP_SLOT,
        };
        // SAFETY: the linker stores an address in this slot.
        match unsafe { set(object, slot.address, &function) } {
            Found::Hook => count.hooked += 1,
            Found::Nothing => count.unfilled += 1,
            Found::Other | Found::Original => {}
        }
    };
    // SAFETY: as the caller says.
    unsafe { each_slot(object, each) };
}

/// The function that a slot is for.
struct Function {
    original: usize,
    hook: usize,
    /// The object's own definition of the function, if it has one.
    own: Option<usize>,
    /// Whether the linker may fill in the slot as late as the first call. Until then, the slot points to code of its own object.
    late: bool,
}

/// What a slot points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Hook,
    /// The original function, or the code that finds it at the first call.
    Original,
    /// Another function of that name, such as the object's own.
    Other,
    /// Nothing yet: another thread is loading the object.
    Nothing,
}

impl Function {
    /// What a slot with this value points to.
    fn find(&self, object: &Object, value: usize) -> Found {
        let inside = (object.base..object.end).contains(&(value as u64));
        // Until the linker has processed a slot, the slot holds an offset in its object, or 0. The linker processes the program,
        // which may be at address 0, before any of its code runs.
        let offset = object.base != 0 && (value as u64) < object.end - object.base;
        if value == self.hook {
            Found::Hook
        } else if value == self.original || (inside && self.late && self.own != Some(value)) {
            Found::Original
        } else if offset && !inside {
            Found::Nothing
        } else {
            Found::Other
        }
    }
}

/// Sets one slot, if it points to the original function. Returns what the slot points to now.
///
/// # Safety
/// `slot` is a slot of the object, which is loaded.
unsafe fn set(object: &Object, slot: u64, function: &Function) -> Found {
    // SAFETY: the slot is an aligned word that lives as long as the object; the linker and this store whole words.
    let word = unsafe { AtomicUsize::from_ptr(pointer(slot)) };
    let now = word.load(Ordering::Relaxed);
    let found = function.find(object, now);
    if found != Found::Original {
        return found;
    }
    let page = page_size() as u64;
    let (start, end) = object.read_only;
    let protected = (start & !(page - 1)..end & !(page - 1)).contains(&slot);
    // A thread that is loading the object still writes to this page, and makes it read-only afterwards.
    let writable = protected && is_writable(slot);
    if protected && !protect(slot & !(page - 1), page, PROT_READ | PROT_WRITE) {
        return found;
    }
    let set = word.compare_exchange(now, function.hook, Ordering::SeqCst, Ordering::Relaxed);
    if protected && !writable {
        protect(slot & !(page - 1), page, PROT_READ);
    }
    match set {
        Ok(_) => Found::Hook,
        // The linker has filled in the slot at this moment.
        Err(_) => Found::Nothing,
    }
}

/// Whether a word can be written. The kernel tries, with an atomic "or 0".
fn is_writable(word: u64) -> bool {
    const OR: c_long = 2 << 28;
    let other = 0_u32;
    // SAFETY: wakes at most 0 of the threads that wait for `other`, and changes no bit of the word; the kernel checks that the
    // word is mapped.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const other,
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0_usize,
            0_usize,
            pointer::<u32>(word),
            OR,
        )
    };
    result >= 0
}

/// Changes the protection of a page of slots that the linker makes read-only.
fn protect(page: u64, len: u64, protection: u32) -> bool {
    // SAFETY: the page contains only slots and constants of the linker, which may always be read. The page is only made writable,
    // and made read-only again if it was read-only before.
    unsafe { libc::mprotect(pointer(page), len as usize, protection as c_int) == 0 }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// An object of two pages, the first of which the linker makes read-only.
    fn object() -> Object {
        let page = page_size();
        // SAFETY: new memory at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                2 * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let base = start.expose_provenance() as u64;
        Object {
            base,
            end: base + 2 * page as u64,
            read_only: (base, base + page as u64),
            ..Object::default()
        }
    }

    const ORIGINAL: usize = 0x7000_0000_1000;
    const HOOK: usize = 0x7000_0000_2000;

    fn function() -> Function {
        Function {
            original: ORIGINAL,
            hook: HOOK,
            own: None,
            late: true,
        }
    }

    fn store(slot: u64, value: usize) {
        // SAFETY: an aligned word of a test's object.
        unsafe { pointer::<usize>(slot).write_volatile(value) };
    }

    fn load(slot: u64) -> usize {
        // SAFETY: an aligned word of a test's object.
        unsafe { pointer::<usize>(slot).read_volatile() }
    }

    /// While one thread loads an object, another may set its slots. The loader must still be able to write to them.
    #[test]
    fn a_page_that_the_linker_has_not_finished_stays_writable() {
        let object = object();
        let (slot, page) = (object.base + 64, page_size() as u64);
        store(slot, ORIGINAL);
        assert!(is_writable(slot));
        // SAFETY: a slot of the test's object.
        assert_eq!(unsafe { set(&object, slot, &function()) }, Found::Hook);
        assert_eq!(load(slot), HOOK);
        assert!(is_writable(slot), "the linker would crash");

        let finished = object.base + 128;
        store(finished, ORIGINAL);
        assert!(protect(object.base, page, PROT_READ));
        assert!(!is_writable(finished));
        // SAFETY: a slot of the test's object.
        assert_eq!(unsafe { set(&object, finished, &function()) }, Found::Hook);
        assert_eq!(load(finished), HOOK);
        assert!(!is_writable(finished), "the slots were protected");
    }

    /// Slots that the linker has yet to fill in are counted: the object is not done.
    #[test]
    fn a_slot_that_is_not_filled_in_yet_is_reported() {
        let object = object();
        let slot = object.base + page_size() as u64;
        for offset in [0, 0x40] {
            store(slot, offset);
            // SAFETY: a slot of the test's object.
            assert_eq!(unsafe { set(&object, slot, &function()) }, Found::Nothing);
            assert_eq!(load(slot), offset);
        }
    }

    /// Only a slot that is filled in at the first call points to its own object until then. A pointer in data, or an object's
    /// own function, stays as it is.
    #[test]
    fn a_data_pointer_into_its_own_object_is_not_replaced() {
        let object = object();
        let inside = object.base as usize + 0x20;
        assert_eq!(function().find(&object, inside), Found::Original);
        let data = Function {
            late: false,
            ..function()
        };
        assert_eq!(data.find(&object, inside), Found::Other);
        let own = Function {
            own: Some(inside),
            ..function()
        };
        assert_eq!(own.find(&object, inside), Found::Other);
        assert_eq!(own.find(&object, inside + 0x10), Found::Original);
        assert_eq!(function().find(&object, ORIGINAL), Found::Original);
        assert_eq!(function().find(&object, HOOK), Found::Hook);
        assert_eq!(function().find(&object, 0x7000_0000_3000), Found::Other);
    }
}
