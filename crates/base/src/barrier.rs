//! Memory barriers of which one side is free.
#![allow(clippy::unimplemented, missing_docs)]
/// Registers this process for heavy barriers of others; true if they work here.
pub fn register() -> bool {
    unimplemented!()
}
/// Whether `register` succeeded.
pub fn available() -> bool {
    unimplemented!()
}
pub fn heavy() {
    unimplemented!()
}
#[inline(always)]
pub fn light() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}
