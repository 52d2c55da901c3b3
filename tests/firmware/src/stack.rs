//! The depth of the stack: words that start-up painted and that were never overwritten were never reached.

/// The value that the stack is painted with.
pub(crate) const PAINT: u32 = 0xa5a5_5a5a;

unsafe extern "C" {
    static mut stack_end: u32;
    static mut stack_start: u32;
}

/// The largest number of bytes of the stack in use at once, and the size of the stack.
pub fn used() -> (usize, usize) {
    let (end, start) = (&raw const stack_end, &raw const stack_start);
    let mut at = end;
    // Safety: words of the stack, between the linker's marks.
    while at < start && unsafe { at.read_volatile() } == PAINT {
        at = at.wrapping_add(1);
    }
    (start.addr() - at.addr(), start.addr() - end.addr())
}
