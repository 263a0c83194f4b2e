//! The machine code that touches memory that might not be mapped.
//!
//! All of it is between two labels, uses no stack and changes no callee-saved register. The signal handler (see
//! [`super::handler`]) relies on that: when the program counter is between the labels, it puts the faulting address
//! into `rax` and continues at a landing pad that returns "fault" to the caller.
//!
//! Each routine returns `rax` (a value, or the address of a fault) and `rdx` (0, or 1 for a fault).
//!
//! Bytes are stored in ascending order, and the last 8 bytes with a separate move after everything else, even after
//! `rep movsb`, whose own stores the processor may reorder. Interior bytes may be stored twice.

// UNSAFETY: assembler, because a compiler must neither see nor reorder accesses that may fault or race.

use std::arch::global_asm;

/// What a routine returns: in `rax` and `rdx`, as the C calling convention returns two words.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    /// The value, or the address of the fault, or [`UNKNOWN_ADDRESS`].
    pub(super) value: u64,
    /// 0, or 1 for a fault.
    pub(super) fault: u64,
}

/// The address of a fault for which the processor reports none (a non-canonical address).
pub(super) const UNKNOWN_ADDRESS: u64 = u64::MAX;

/// The maximum number of bytes that [`rkey_base_copy_small`] copies.
pub(super) const SMALL_MAX: usize = 136;

/// From this length on, `rep movsb` copies from this processor's own caches as fast as vector moves, with fewer instructions. Which of the
/// two is faster from another processor's cache is measured (see `super::trials`).
pub(super) const STRING_MIN: usize = 8192;

unsafe extern "C" {
    /// Copies `len <= SMALL_MAX` bytes.
    pub(super) fn rkey_base_copy_small(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    /// Copies `len > SMALL_MAX` bytes; needs AVX.
    pub(super) fn rkey_base_copy_vector(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    /// Copies `len >= 8` bytes.
    pub(super) fn rkey_base_copy_string(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    /// `lock cmpxchg`: returns the old value.
    pub(super) fn rkey_base_compare_swap(p: *mut u64, compare: u64, swap: u64) -> Outcome;
    /// `lock xadd`: returns the old value.
    pub(super) fn rkey_base_fetch_add(p: *mut u64, add: u64) -> Outcome;

    // Labels; they are never called.
    fn rkey_base_guarded_begin();
    fn rkey_base_guarded_vector();
    fn rkey_base_guarded_end();
    fn rkey_base_landing();
    fn rkey_base_landing_vector();
}

/// Where to continue after a fault at `pc`, or `None` when `pc` is not inside the guarded code.
pub(super) fn landing(pc: usize) -> Option<usize> {
    let begin = rkey_base_guarded_begin as *const () as usize;
    let vector = rkey_base_guarded_vector as *const () as usize;
    let end = rkey_base_guarded_end as *const () as usize;
    if pc < begin || pc >= end {
        None
    } else if pc >= vector {
        Some(rkey_base_landing_vector as *const () as usize)
    } else {
        Some(rkey_base_landing as *const () as usize)
    }
}

macro_rules! routine {
    ($name:literal, $($body:literal),* $(,)?) => {
        concat!(
            ".p2align 4\n.globl ", $name, "\n.hidden ", $name, "\n.type ", $name, ",@function\n",
            $name, ":\n.cfi_startproc\n",
            $($body, "\n",)*
            ".cfi_endproc\n.size ", $name, ", . - ", $name, "\n"
        )
    };
}

macro_rules! position {
    ($name:literal) => {
        concat!(".globl ", $name, "\n.hidden ", $name, "\n", $name, ":\n")
    };
}

global_asm!(
    ".pushsection .text.rkey_base_guarded,\"ax\",@progbits",
    position!("rkey_base_guarded_begin"),
    // rdi = destination, rsi = source, rdx = length. All loads of a case come before its stores.
    routine!(
        "rkey_base_copy_small",
        "cmp rdx, 8",
        "jne 20f",
        "mov rax, [rsi]", // 8: one load, one store
        "mov [rdi], rax",
        "xor edx, edx",
        "ret",
        "20:",
        "jb 60f",
        "cmp rdx, 16",
        "ja 30f",
        "mov rax, [rsi]", // 9 to 16
        "mov rcx, [rsi + rdx - 8]",
        "mov [rdi], rax",
        "mov [rdi + rdx - 8], rcx",
        "xor edx, edx",
        "ret",
        "30:",
        "cmp rdx, 32",
        "ja 40f",
        "movdqu xmm0, [rsi]", // 17 to 32
        "mov rax, [rsi + rdx - 16]",
        "mov rcx, [rsi + rdx - 8]",
        "movdqu [rdi], xmm0",
        "mov [rdi + rdx - 16], rax",
        "mov [rdi + rdx - 8], rcx",
        "xor edx, edx",
        "ret",
        "40:",
        "cmp rdx, 72",
        "ja 50f",
        "movdqu xmm0, [rsi]", // 33 to 72: all but the last 8 are 25 to 64
        "cmp rdx, 40",
        "jbe 41f",
        "movdqu xmm1, [rsi + 16]",
        "movdqu xmm2, [rsi + rdx - 40]",
        "movdqu xmm3, [rsi + rdx - 24]",
        "mov rcx, [rsi + rdx - 8]",
        "movdqu [rdi], xmm0",
        "movdqu [rdi + 16], xmm1",
        "movdqu [rdi + rdx - 40], xmm2",
        "movdqu [rdi + rdx - 24], xmm3",
        "mov [rdi + rdx - 8], rcx",
        "xor edx, edx",
        "ret",
        "41:",
        "movdqu xmm3, [rsi + rdx - 24]",
        "mov rcx, [rsi + rdx - 8]",
        "movdqu [rdi], xmm0",
        "movdqu [rdi + rdx - 24], xmm3",
        "mov [rdi + rdx - 8], rcx",
        "xor edx, edx",
        "ret",
        "50:",
        "movdqu xmm0, [rsi]", // 73 to 136: all but the last 8 are 65 to 128
        "movdqu xmm1, [rsi + 16]",
        "movdqu xmm2, [rsi + 32]",
        "movdqu xmm3, [rsi + 48]",
        "movdqu xmm4, [rsi + rdx - 72]",
        "movdqu xmm5, [rsi + rdx - 56]",
        "movdqu xmm6, [rsi + rdx - 40]",
        "movdqu xmm7, [rsi + rdx - 24]",
        "mov rcx, [rsi + rdx - 8]",
        "movdqu [rdi], xmm0",
        "movdqu [rdi + 16], xmm1",
        "movdqu [rdi + 32], xmm2",
        "movdqu [rdi + 48], xmm3",
        "movdqu [rdi + rdx - 72], xmm4",
        "movdqu [rdi + rdx - 56], xmm5",
        "movdqu [rdi + rdx - 40], xmm6",
        "movdqu [rdi + rdx - 24], xmm7",
        "mov [rdi + rdx - 8], rcx",
        "xor edx, edx",
        "ret",
        "60:",
        "cmp rdx, 4",
        "jb 70f",
        "mov eax, [rsi]", // 4 to 7; 4 by a single store
        "je 61f",
        "mov ecx, [rsi + rdx - 4]",
        "mov [rdi], eax",
        "mov [rdi + rdx - 4], ecx",
        "xor edx, edx",
        "ret",
        "61:",
        "mov [rdi], eax",
        "xor edx, edx",
        "ret",
        "70:",
        "cmp rdx, 2",
        "jb 80f",
        "movzx eax, word ptr [rsi]", // 2 by a single store, 3
        "je 71f",
        "movzx ecx, byte ptr [rsi + 2]",
        "mov [rdi], ax",
        "mov [rdi + 2], cl",
        "xor edx, edx",
        "ret",
        "71:",
        "mov [rdi], ax",
        "xor edx, edx",
        "ret",
        "80:",
        "test rdx, rdx",
        "jz 81f",
        "movzx eax, byte ptr [rsi]", // 1
        "mov [rdi], al",
        "81:",
        "xor edx, edx",
        "ret",
    ),
    routine!(
        "rkey_base_copy_string",
        "lea rcx, [rdx - 8]",
        "rep movsb",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "xor edx, edx",
        "ret",
    ),
    routine!(
        "rkey_base_compare_swap",
        "mov rax, rsi",
        "lock cmpxchg [rdi], rdx",
        "xor edx, edx",
        "ret",
    ),
    routine!(
        "rkey_base_fetch_add",
        "mov rax, rsi",
        "lock xadd [rdi], rax",
        "xor edx, edx",
        "ret",
    ),
    position!("rkey_base_guarded_vector"),
    routine!(
        "rkey_base_copy_vector",
        "lea r8, [rdi + rdx - 8]", // ends of all but the last 8 bytes
        "lea r9, [rsi + rdx - 8]",
        "sub rdx, 8",
        "vmovdqu ymm0, [rsi]", // 32 bytes, then continue where the destination is aligned
        "vmovdqu [rdi], ymm0",
        "lea rcx, [rdi + 32]",
        "and rcx, -32",
        "sub rcx, rdi",
        "add rdi, rcx",
        "add rsi, rcx",
        "sub rdx, rcx",
        "sub rdx, 128",
        "jb 2f",
        ".p2align 4",
        "3:",
        "vmovdqu ymm0, [rsi]",
        "vmovdqu ymm1, [rsi + 32]",
        "vmovdqu ymm2, [rsi + 64]",
        "vmovdqu ymm3, [rsi + 96]",
        "vmovdqa [rdi], ymm0",
        "vmovdqa [rdi + 32], ymm1",
        "vmovdqa [rdi + 64], ymm2",
        "vmovdqa [rdi + 96], ymm3",
        "add rsi, 128",
        "add rdi, 128",
        "sub rdx, 128",
        "jae 3b",
        "2:",
        "vmovdqu ymm0, [r9 - 128]", // the last 128 of them, even those that the loop has already stored
        "vmovdqu ymm1, [r9 - 96]",
        "vmovdqu ymm2, [r9 - 64]",
        "vmovdqu ymm3, [r9 - 32]",
        "mov rax, [r9]",
        "vmovdqu [r8 - 128], ymm0",
        "vmovdqu [r8 - 96], ymm1",
        "vmovdqu [r8 - 64], ymm2",
        "vmovdqu [r8 - 32], ymm3",
        "mov [r8], rax",
        "vzeroupper",
        "xor edx, edx",
        "ret",
    ),
    position!("rkey_base_guarded_end"),
    routine!(
        "rkey_base_landing_vector",
        "vzeroupper",
        "mov edx, 1",
        "ret"
    ),
    routine!("rkey_base_landing", "mov edx, 1", "ret"),
    ".popsection",
);
