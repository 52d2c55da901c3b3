//! The command `host` under its other name.

use capful_host::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> std::process::ExitCode {
    capful_host::cli::main()
}
