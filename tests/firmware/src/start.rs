//! From reset to `main`: enables the floating-point unit, paints the stack, initialises variables.

use core::fmt::Write as _;

use crate::semihosting::{Line, exit};
use crate::stack::PAINT;

unsafe extern "C" {
    static mut stack_start: u32;
    static mut data_start: u32;
    static mut data_end: u32;
    static data_source: u32;
    static mut bss_start: u32;
    static mut bss_end: u32;
    fn main() -> !;
}

// The first instructions use no floats and no stack: the unit is off (CPACR, coprocessors 10 and 11), and the stack is
// painted from its end to its beginning while it is still empty.
core::arch::global_asm!(
    ".section .text.reset",
    ".global reset",
    ".thumb_func",
    "reset:",
    "ldr r0, =0xe000ed88",
    "ldr r1, [r0]",
    "orr r1, r1, #(0xf << 20)",
    "str r1, [r0]",
    "dsb",
    "isb",
    "ldr r0, =stack_end",
    "ldr r1, =stack_start",
    "mov sp, r1",
    "ldr r2, ={paint}",
    "2: cmp r0, r1",
    "itt lo",
    "strlo r2, [r0], #4",
    "blo 2b",
    "b {begin}",
    paint = const PAINT,
    begin = sym begin,
);

unsafe extern "C" {
    fn reset() -> !;
}

/// Copies the variables' initial values, clears the others, and runs the program.
unsafe extern "C" fn begin() -> ! {
    // Safety: the linker's marks, multiples of 4, before any variable is used.
    unsafe {
        let (mut to, mut from) = (&raw mut data_start, &raw const data_source);
        while to < &raw mut data_end {
            to.write_volatile(from.read());
            (to, from) = (to.add(1), from.add(1));
        }
        let mut to = &raw mut bss_start;
        while to < &raw mut bss_end {
            to.write_volatile(0);
            to = to.add(1);
        }
        main()
    }
}

extern "C" fn fault() -> ! {
    let _ = Line::open().write_str("the chip faulted\n");
    exit(102)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let mut line = Line::open();
    let _ = line.write_str("panic");
    if let Some(place) = info.location() {
        let _ = writeln!(line, " at {}:{}", place.file(), place.line());
    }
    exit(101)
}

/// An entry of the vector table.
#[repr(C)]
union Vector {
    stack: *mut u32,
    start: unsafe extern "C" fn() -> !,
    handler: extern "C" fn() -> !,
}

// Safety: only the core reads it.
unsafe impl Sync for Vector {}

/// The initial stack pointer, the entry point, and the handlers of the fourteen exceptions.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".vectors")]
static VECTORS: [Vector; 16] = {
    let mut vectors = [const { Vector { handler: fault } }; 16];
    vectors[0] = Vector { stack: &raw mut stack_start };
    vectors[1] = Vector { start: reset };
    vectors
};
