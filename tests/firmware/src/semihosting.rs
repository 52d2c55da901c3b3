//! A line to the debugger, or to the emulator: Arm's semihosting, through which a program prints and exits.

use core::fmt;

fn call(operation: u32, argument: *const u32) -> u32 {
    let result;
    // Safety: the trap that calls the debugger; each caller below passes the argument block that the operation reads.
    unsafe {
        core::arch::asm!("bkpt 0xab", inout("r0") operation => result, in("r1") argument, options(nostack));
    }
    result
}

const WRITE: u32 = 0x05;
const OPEN: u32 = 0x01;
const COMMAND_LINE: u32 = 0x15;
const EXIT: u32 = 0x20;
const APPLICATION_EXIT: u32 = 0x2_0026;

/// The debugger's standard output.
pub struct Line(u32);

impl Line {
    /// Opens it.
    pub fn open() -> Line {
        let name = b":tt\0";
        // Opened to write, under the name of the console, three bytes long.
        let block = [name.as_ptr().addr() as u32, 4, 3];
        Line(call(OPEN, block.as_ptr()))
    }

    /// Writes bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        let block = [self.0, bytes.as_ptr().addr() as u32, bytes.len() as u32];
        call(WRITE, block.as_ptr());
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.write(text.as_bytes());
        Ok(())
    }
}

/// The command line of the program, stored in `buffer`; empty if it is too long or not text.
pub fn command_line(buffer: &mut [u8]) -> &str {
    let mut block = [buffer.as_mut_ptr().expose_provenance() as u32, buffer.len() as u32];
    let failed = call(COMMAND_LINE, block.as_mut_ptr()) != 0;
    let text = buffer.get(..block[1] as usize).filter(|_| !failed).unwrap_or_default();
    core::str::from_utf8(text).unwrap_or_default().trim_end_matches('\0')
}

/// Exits with a status.
pub fn exit(status: u32) -> ! {
    let block = [APPLICATION_EXIT, status];
    call(EXIT, block.as_ptr());
    loop {
        core::hint::spin_loop();
    }
}
