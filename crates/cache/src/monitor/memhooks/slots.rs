//! The slots through which loaded objects call functions of other objects: relocations of the types `JUMP_SLOT` and `GLOB_DAT`,
//! and pointers to functions in data.

// UNSAFETY: walks the dynamic linker's tables, and stores to the slots that they name.
#![allow(unsafe_code)]

use super::calls;
use linux_raw_sys::general::{PROT_READ, PROT_WRITE};
use rkey_base::process::page_size;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

// The types of relocations, `<elf.h>`.
#[cfg(target_arch = "x86_64")]
const KINDS: [u32; 3] = [7, 6, 1];
#[cfg(target_arch = "aarch64")]
const KINDS: [u32; 3] = [1026, 1025, 257];

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

/// How many objects have been loaded.
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

/// Sets the slots of all loaded objects. Returns how many now point to hooks.
pub(super) fn set_all() -> usize {
    let mut count = 0_usize;
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
        // SAFETY: `set_all` passes a pointer to its count; the object is as described.
        unsafe { *count.cast::<usize>() += set_slots(&object) };
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
    // glibc stores addresses, musl and the kernel's vDSO offsets.
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

/// # Safety
/// The object is loaded, and `describe` has described it.
unsafe fn set_slots(object: &Object) -> usize {
    let mut count = 0;
    for (start, len) in object.tables {
        if start == 0 {
            continue;
        }
        for index in 0..len as usize / size_of::<Relocation>() {
            // SAFETY: the linker has processed this table, which has that many elements.
            let relocation = unsafe { &*pointer::<Relocation>(start).add(index) };
            if !KINDS.contains(&(relocation.info as u32)) || relocation.addend != 0 {
                continue;
            }
            let symbol = pointer::<libc::Elf64_Sym>(object.symbols);
            // SAFETY: the linker has looked up this symbol of the object, whose name is in its table of strings.
            let name = unsafe {
                let symbol = &*symbol.add((relocation.info >> 32) as usize);
                CStr::from_ptr(pointer::<c_char>(
                    object.strings + u64::from(symbol.st_name),
                ))
            };
            let Some((original, hook)) = calls::hook_of(name) else {
                continue;
            };
            let slot = object.base.wrapping_add(relocation.offset);
            // SAFETY: the linker stores an address in this slot.
            count += usize::from(unsafe { set(object, slot, original, hook) });
        }
    }
    count
}

/// Sets one slot, if it points to the original function or is not filled in yet. Returns whether it now points to the
/// hook.
///
/// # Safety
/// `slot` is a slot of the object, which is loaded.
unsafe fn set(object: &Object, slot: u64, original: usize, hook: usize) -> bool {
    // SAFETY: the slot is an aligned word that lives as long as the object; the linker and this store whole words.
    let word = unsafe { AtomicUsize::from_ptr(pointer(slot)) };
    let now = word.load(Ordering::Relaxed);
    if now == hook {
        return true;
    }
    // A slot that is filled in at its first call points to code of its own object until then.
    let waits = (object.base..object.end).contains(&(now as u64));
    if now != original && !waits {
        return false;
    }
    let page = page_size() as u64;
    let (start, end) = object.read_only;
    let read_only = (start & !(page - 1)..end & !(page - 1)).contains(&slot);
    if read_only && !protect(slot & !(page - 1), page, PROT_READ | PROT_WRITE) {
        return false;
    }
    let set = word
        .compare_exchange(now, hook, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok();
    if read_only {
        protect(slot & !(page - 1), page, PROT_READ);
    }
    set
}

/// Changes the protection of a page of slots that the linker has made read-only.
fn protect(page: u64, len: u64, protection: u32) -> bool {
    // SAFETY: the page has nothing but slots and constants of the linker, which may always be read; it is only made writable and
    // read-only again.
    unsafe { libc::mprotect(pointer(page), len as usize, protection as c_int) == 0 }
}
