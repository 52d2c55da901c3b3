//! Counts instructions with the core's own timer: under `qemu -icount shift=0` an instruction takes a nanosecond, and
//! the timer counts the machine's clock. The number of instructions in a tick is measured at the start, with a loop of
//! known length.

use core::ptr::{read_volatile, write_volatile};

const CONTROL: *mut u32 = 0xe000_e010 as *mut u32;
const RELOAD: *mut u32 = 0xe000_e014 as *mut u32;
const CURRENT: *const u32 = 0xe000_e018 as *const u32;
const MASK: u32 = 0x00ff_ffff;

/// Counts instructions.
pub struct Counter {
    /// Instructions of a thousand ticks.
    per_thousand: u64,
}

/// Iterations of the measured loop, of two instructions each.
const TURNS: u32 = 4_000_000;

fn now() -> u32 {
    // Safety: the timer's register; reading it changes nothing.
    unsafe { read_volatile(CURRENT) }
}

#[inline(never)]
fn turn(turns: u32) {
    // Safety: changes only a register that it declares, and the flags.
    unsafe {
        core::arch::asm!("2: subs {n}, {n}, #1", "bne 2b", n = inout(reg) turns => _);
    }
}

impl Counter {
    /// Starts the timer and measures its tick.
    pub fn start() -> Counter {
        // Safety: the timer's registers, which nothing else uses: sets its largest range, the core's clock, no
        // interrupt.
        unsafe {
            write_volatile(RELOAD, MASK);
            write_volatile(CURRENT.cast_mut(), 0);
            write_volatile(CONTROL, 5);
        }
        let mut counter = Counter { per_thousand: 1000 };
        let (short, long) = (counter.count(|| turn(TURNS / 2)).1, counter.count(|| turn(TURNS)).1);
        // The difference of the two is TURNS / 2 iterations of two instructions; the surrounding instructions cancel.
        counter.per_thousand = u64::from(TURNS) * 1000 / (long - short).max(1);
        counter
    }

    /// Runs `work` and returns its number of instructions, to within one tick of the timer; at most 2²⁴ ticks.
    pub fn count<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = now();
        let done = work();
        let ticks = before.wrapping_sub(now()) & MASK;
        (done, u64::from(ticks) * self.per_thousand / 1000)
    }

    /// The measured number of instructions in a thousand ticks.
    pub fn tick(&self) -> u64 {
        self.per_thousand
    }

    /// A loop of `turns` iterations of two instructions, to check the measurement.
    pub fn known(&self, turns: u32) -> u64 {
        self.count(|| turn(turns)).1
    }
}
